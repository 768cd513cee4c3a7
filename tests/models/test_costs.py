"""What training takes, worked out without training."""

import pytest
import torch

from torchcaps.models import create_model
from torchcaps.models.costs import training_costs


@pytest.mark.parametrize("name", ["backbone_caps", "backbone_linear", "capsnet_small", "em_capsnet"])
def test_the_memory_is_what_a_forward_pass_keeps(name):
    model = create_model(name, image_shape=(1, 20, 20)).train()
    costs, kept = training_costs(model), {}

    def note(tensor):
        kept[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = model(torch.rand(2, 1, 20, 20))
    own = {each.untyped_storage()._cdata for each in (*model.parameters(), *model.buffers())}
    assert costs.image_bytes == sum(size for storage, size in kept.items() if storage not in own) // 2
    assert costs.weight_bytes == 16 * model.parameter_count()
    del output


def test_it_is_said_for_a_batch():
    costs = training_costs(create_model("backbone_caps", image_shape=(3, 224, 224)))
    assert costs.describe(16).startswith("memory in float32: about 1.7 MiB for weights and moments, ")
    assert costs.describe(512).endswith(" GiB for a batch of 512")
    assert training_costs(create_model("pix2pix_small")) is None
