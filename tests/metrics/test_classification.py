import torch

from torchcaps.explain import confusion_matrix, precision_recall, predicted_classes, worst_mistakes


def test_confusion_counts_true_rows_against_predicted_columns():
    matrix = confusion_matrix(torch.tensor([0, 0, 2, 2]), torch.tensor([0, 1, 2, 1]), 3)
    assert matrix.tolist() == [[1, 1, 0], [0, 0, 0], [0, 1, 1]]


def test_worst_mistakes_are_the_most_confident_wrong_answers():
    lengths = torch.tensor([[0.9, 0.1], [0.6, 0.2], [0.8, 0.7], [0.1, 0.3]])
    targets = torch.tensor([0, 1, 1, 0])
    assert worst_mistakes(lengths, targets).tolist() == [2, 1, 3]
    assert worst_mistakes(lengths, targets, limit=1).tolist() == [2]
    assert worst_mistakes(lengths, lengths.argmax(-1)).tolist() == []


def test_with_several_labels_a_missed_class_is_a_mistake_too():
    lengths = torch.tensor([[0.9, 0.8], [0.9, 0.02], [0.6, 0.1]])
    targets = torch.tensor([[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
    assert worst_mistakes(lengths, targets).tolist() == [1, 2]


def test_precision_and_recall_of_each_class():
    lengths = torch.tensor([[0.9, 0.1, 0.0], [0.8, 0.1, 0.0], [0.2, 0.7, 0.0]])
    targets = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    precision, recall, support = precision_recall(lengths, targets)
    assert precision[:2].tolist() == [0.5, 1.0]
    assert recall[:2].tolist() == [1.0, 0.5]
    assert precision[2].isnan()
    assert recall[2].isnan()
    assert support.tolist() == [1, 2, 0]


def test_where_two_classes_are_known_to_be_there_the_two_longest_answer():
    lengths = torch.tensor([[0.4, 0.3, 0.1], [0.9, 0.2, 0.8]])
    targets = torch.tensor([[1.0, 1, 0], [1, 1, 0]])
    assert predicted_classes(lengths, each=2).tolist() == [[True, True, False], [True, False, True]]
    assert worst_mistakes(lengths, targets, each=2).tolist() == [1]
    assert worst_mistakes(lengths, targets).tolist() == [1, 0]  # by length nothing is found in the first
    precision, recall, _ = precision_recall(lengths, targets, each=2)
    assert (precision.tolist(), recall[:2].tolist()) == ([1, 1, 0], [1, 0.5])
