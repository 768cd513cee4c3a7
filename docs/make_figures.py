"""Regenerate every picture and every table of the README and the docs.

Pictures come from the shipped weights and the embedded digits, tables from the files that benchmarks wrote. The paper's
figures need the test images of MNIST; without them, those pictures stay unchanged.

make figures
"""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path

import torch

import torchcaps
from torchcaps import explain
from torchcaps.bench.plot import figure_family, figure_scaling
from torchcaps.claims.page import fill_claims
from torchcaps.data import Objects, draw_shapes, frozen_set, load_data
from torchcaps.data.datasets.multimnist import TEST_SEED, draw_pairs
from torchcaps.data.datasets.shapes.known import known_wholes
from torchcaps.data.datasets.shapes.parts import PART_KINDS, PARTS
from torchcaps.data.datasets.shapes.render import render
from torchcaps.data.datasets.shapes.sets import FROZEN_SETS
from torchcaps.data.datasets.shapes.wholes import WHOLES, member_table, members_of, place_members
from torchcaps.detection import detect, outline_of
from torchcaps.errors import UserError
from torchcaps.explain.objects import colour_of_class, figure_errors, figure_objects, figure_votes
from torchcaps.explain.scene_figures import SceneObject, figure_parse_tree, figure_scene_routing
from torchcaps.explain.wholes import whole_trace
from torchcaps.models import SceneCaps, SegmentationModel, SynthesisModel
from torchcaps.models.segmentation import to_mask
from torchcaps.models.synthesis import generate_images
from torchcaps.models.tiles import predict_map
from torchcaps.robustness.charts import FIGURES
from torchcaps.robustness.perturb import rotate
from torchcaps.similarity import Similarity
from torchcaps.train.experiments.judge import judge_tables
from torchcaps.train.experiments.reproduce import fill_results

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tools"))

import paper_figures  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
# Of votes for wholes of known layouts: pixels, degrees, log scale.
TOLERANCE, HARBOUR_TOLERANCE = (0.5, 3.0, 0.05), (1.0, 5.0, 0.1)
SCENES = 100  # among which one is looked for
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
# <!-- table: FILE --> or <!-- table: FILE where COLUMN=VALUE,… show COLUMN,… -->
TABLE = re.compile(r"(<!-- table: (\S+)(?: where (\S+))?(?: show (\S+))? -->\n).*?(<!-- end of table -->)", re.DOTALL)

JUDGED = re.compile(r"(<!-- judged: (\S+) -->\n).*?(<!-- end of judged -->)", re.DOTALL)


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    model = torchcaps.load("capsnet-digits")
    test = load_data(**model.trained_by["data"]).test
    assert test is not None
    # The first test image of each digit; none is picked by its quality.
    first = torch.stack([(test.targets == digit).nonzero()[0, 0] for digit in range(10)])
    images, targets = model.prepare(test.images[first]), test.targets[first]
    with torch.no_grad():
        lengths = model(images).lengths

    drawn = explain.reconstructions(model, images, targets)
    save("reconstructions", explain.figure_reconstructions(images, drawn, model.class_names))
    save("sweep", explain.figure_sweep(explain.sweep(model, images[3]), title="Capsule of class 3, 16 dimensions"))
    couplings = explain.routing_couplings(model, images[4:5])[:, 0]
    heat = explain.maps_on_image(model, explain.routing_maps(model, images[4:5])[:, 0])
    entropies = explain.coupling_entropy(couplings)
    save("routing", explain.figure_routing(images[4], heat, lengths[4], entropies, model.class_names))
    claims_pictures()
    try:
        paper_pictures()
    except UserError as error:
        print(f"the paper's figures stay unchanged: {error}")
    pose_pictures()
    object_pictures()
    parse_tree_picture()
    scene_routing_picture()
    segmentation_pictures()
    synthesis_pictures()
    save("scaling", figure_scaling(read_rows("benchmarks/results/h200.csv")))
    save("family", figure_family(read_rows("benchmarks/results/h200-family.csv")))
    save("isbi-curve", explain.figure_by_size(isbi_curves(), measure="Dice of membranes, %", title="ISBI 2012, n = 3"))
    for page in PAGES:
        fill(page)


def paper_pictures() -> None:
    """Draw figures 3, 4 and 5 of Sabour et al. 2017, and maps of couplings."""
    test = load_data("mnist").test
    assert test is not None
    model = torchcaps.load("capsnet-mnist")
    images = model.prepare(test.images)
    examples = paper_figures.digit_examples(model, images, test.targets, classes=(2, 5, 8, 9))
    save("figure-3", paper_figures.figure_digit_examples(examples))
    save("figure-4", paper_figures.figure_perturbations(paper_figures.perturbations(model, images, test.targets)))
    save("couplings", paper_figures.figure_coupling_maps(images[:3], paper_figures.coupling_maps(model, images[:3])))
    pairs = next(draw_pairs(test, 1000, TEST_SEED))  # the first of the test pairs
    save("figure-5", explain.figure_pair_examples(explain.pair_examples(torchcaps.load("capsnet-multimnist"), pairs)))


def claims_pictures() -> None:
    """Draw the robustness suites of docs/claims.md from the files that `torchcaps reproduce claims` wrote."""
    for path in sorted((ROOT / "docs" / "claims" / "curves").glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        save(f"robustness-{path.stem}", FIGURES[path.stem](result))


def pose_pictures() -> None:
    """Draw the first test image of a 3, rotated by 25°, with the pose that pose capsules read."""
    model = torchcaps.load("posecaps-digits")
    test = load_data(**model.trained_by["data"]).test
    assert test is not None
    three = model.prepare(test.images[(test.targets == 3).nonzero()[0]])
    figures, _ = explain.show_placement(model, rotate(three, 25.0)[0], None)
    for name in ("lattice", "canonical"):
        save(f"posecaps-{name}", figures[name])


def object_pictures() -> None:
    """Draw what is found among boats, houses and scrambled parts; votes of one image; and errors at all angles."""
    model = torchcaps.load("scenecaps-shapes")
    assert isinstance(model, SceneCaps)
    images = torch.cat([frozen_set("turned").images[:6], frozen_set("scrambled").images[:2]])
    found = detect(model, images)
    labels = [f"{each[0].name}, {each[0].angle:.0f}°" if each else "neither" for each in found]
    save("objects", figure_objects(images, [[outline_of(one) for one in each] for each in found], labels))
    boat = images[:1] if found[0][0].name == "boat" else images[1:2]
    with torch.no_grad():
        parts = model(boat).parts
        votes, weights = model.wholes[0].votes(*parts[:3])
        words = ["they agree" if name == "boat" else "they do not" for name in model.class_names]
        save("votes", figure_votes(boat[0], model.class_names, votes[0], weights[0], words))
    angles = torch.arange(-180.0, 180.0, 5.0)
    scenes = draw_shapes(1, 4, turn=0.0, shift=0.0, scale=(1.0, 1.0), dtype=torch.float64)
    errors = []
    for angle in angles.tolist():
        whole = scenes.wholes.with_tensors({**scenes.wholes.tensors(), "angle": torch.full((1, 1), angle).double()})
        drawn = render(place_members(whole, members_of(whole)), 0.8, (32, 32))
        one = detect(model, drawn.float())[0][0]
        turned = (one.angle - angle + 180) % 360 - 180
        errors.append((turned, one.x - float(whole.x), one.y - float(whole.y), 100 * (one.scale - 1)))
    names = ("angle read − true, degrees", "x, pixels", "y, pixels", "scale, %")
    save("object-errors", figure_errors(angles.tolist(), list(zip(names, zip(*errors)))))


def parse_tree_picture() -> None:
    """Draw the first harbour of the frozen set, parsed from its parts: what is found on each level, and the tree."""
    scenes = frozen_set("harbours")
    parts = scene_parts(scenes.parts, 0)
    wholes, harbours = known_wholes(("house", "boat"), TOLERANCE), known_wholes(("harbour",), HARBOUR_TOLERANCE)
    middle = wholes(*parts)
    top = harbours(*middle[:3])
    kept, found = (each.presence[0] > 0.5 for each in (middle, top))
    levels = [
        [placed_polygon(name, pose) for name, pose in zip(part_names(parts), parts[0][0])],
        [
            box_around(("house", "boat")[label], pose)
            for label, pose in zip(middle.label[0][kept], middle.pose[0][kept])
        ],
        [box_around("harbour", pose) for pose in top.pose[0][found]],
    ]
    shares = [middle.couplings[0, :, :-1][:, kept], top.couplings[0, :, :-1][kept][:, found]]
    save("parse-tree", figure_parse_tree(scenes.images[0], levels, shares))


def scene_routing_picture() -> None:
    """Draw routing of the first crowded scene with single parts in which iteration 1 does not have the last answer."""
    crowded = {**FROZEN_SETS["crowded"].parameters, "number": (2, 2)}
    scenes = draw_shapes(SCENES, 1, **crowded, distractors=(3, 3), distractor_parts=("rectangle", "triangle"))
    names, iterations = scenes.wholes.names, (1, 2, 3)
    layer = known_wholes(names, TOLERANCE)
    for index in range(SCENES):
        parts = scene_parts(scenes.parts, index)
        trace = whole_trace(layer, *(each[0] for each in parts), iterations[-1])
        shown = (trace.presence > 0.2).any(0)
        if bool(((trace.presence[0] > 0.5) != (trace.presence[-1] > 0.5)).any()):
            break
    else:
        raise UserError(f"routing changes none of {SCENES} scenes: draw more")
    hypotheses = [
        [expected_parts(names[label], pose) for label, pose in zip(trace.label[shown], poses[shown])]
        for poses in trace.pose.numbers
    ]
    columns = torch.cat([shown, torch.ones(1, dtype=torch.bool)])
    kept = trace.couplings[..., columns].clone()
    kept[..., -1] = 1 - kept[..., :-1].sum(-1)  # what hypotheses take that are not shown, too
    figure = figure_scene_routing(
        scenes.images[index], part_names(parts), hypotheses, trace.presence[:, shown], kept, iterations
    )
    save("scene-routing", figure)


def scene_parts(parts: Objects, index: int) -> list[torch.Tensor]:
    """Return poses (1, I, 4), presence and types of the true parts of one image, in float64."""
    one = parts[[index]].to(dtype=torch.float64)
    pose = Similarity.of(x=one.x, y=one.y, angle=one.angle, scale=one.scale).numbers
    types = torch.nn.functional.one_hot(one.label, len(parts.names)).double()
    there = one.present[0]
    return [pose[:, there], one.present.double()[:, there], types[:, there]]


def part_names(parts: list[torch.Tensor]) -> list[str]:
    return [PARTS[label] for label in parts[2][0].argmax(-1).tolist()]


def polygons(name: str, pose: Similarity) -> list[torch.Tensor]:
    """Return the corners of a part, or of all parts of a whole, in pixels of the image."""
    if name in PART_KINDS:
        return [pose(pose.numbers.new_tensor(PART_KINDS[name].corners))]
    table = member_table((name,))
    members = Similarity.of_affine(table.poses).numbers[0]
    return [
        polygon
        for label, member in zip(table.label[0].tolist(), members)
        for polygon in polygons(table.names[label], pose.compose(Similarity(member)))
    ]


def placed_polygon(name: str, pose: torch.Tensor) -> SceneObject:
    return SceneObject(name, polygons(name, Similarity(pose)), colour_of_class(PARTS.index(name)))


def expected_parts(name: str, pose: torch.Tensor) -> SceneObject:
    return SceneObject(name, polygons(name, Similarity(pose)), colour_of_class(2 + WHOLES.index(name)))


def box_around(name: str, pose: torch.Tensor) -> SceneObject:
    """Return a whole with the box around its parts, turned as it is."""
    own = torch.cat(polygons(name, Similarity(pose.new_tensor([0, 0, 1, 0]))))
    (left, top), (right, bottom) = own.amin(0).tolist(), own.amax(0).tolist()
    corners = pose.new_tensor([(left, top), (right, top), (right, bottom), (left, bottom)])
    return SceneObject(name, [Similarity(pose)(corners)], colour_of_class(2 + WHOLES.index(name)))


def segmentation_pictures() -> None:
    """Draw the first three test images of axons with their predicted masks."""
    model = torchcaps.load("segcaps-axons")
    assert isinstance(model, SegmentationModel)
    test = load_data(**model.trained_by["data"]).test
    assert test is not None
    compared = []
    for image, mask in list(zip(test.images, test.masks))[:3]:
        found = to_mask(predict_map(model, image)[None])[0].cpu()
        compared.append(explain.compare(model, image, mask, found))
    save("segmentation", explain.figure_masks(compared, model.class_names))


def synthesis_pictures() -> None:
    """Draw the figures of the CapsPix2Pix talk: variations, interpolation, and the features of the last layer."""
    model = torchcaps.load("capspix2pix-axons")
    assert isinstance(model, SynthesisModel)
    test = load_data(**model.trained_by["data"]).test
    assert test is not None
    masks, real = test.masks[:4], [image / 255 for image in test.images[:4]]
    drawn = [torch.stack(some) for some in zip(*(generate_images(model, masks, seed) for seed in range(3)))]
    save("synthesis-drawings", explain.figure_drawings(masks, real, drawn))
    save(
        "synthesis-interpolation",
        explain.figure_interpolation({"": explain.interpolate(model, test.masks[2])}, title=""),
    )
    title = "The last capsule's dimensions from one noise vector to another"
    save(
        "synthesis-features",
        explain.figure_interpolation_features(explain.interpolate(model, test.masks[2], frames=4), title=title),
    )


def isbi_curves() -> dict[str, list[tuple[int, float, float]]]:
    """Return (images, mean, standard deviation) of Dice by number of training images."""
    curves: dict[str, list[tuple[int, float, float]]] = {"SegCaps, 1.4 million parameters": [], "U-Net, 31 million": []}
    for recipe, points in zip(("isbi", "isbi-unet"), curves.values()):
        for images in (3, 6, 12, 24):
            file = ROOT / "docs" / "results" / f"{recipe}{'' if images == 24 else f'-{images}'}.json"
            result = json.loads(file.read_text(encoding="utf-8"))
            points.append((images, result["mean"], result["std"]))
    return curves


def fill(page: Path) -> None:
    """Copy every table of a page from the files that benchmarks wrote."""
    fill_tables(page)
    fill_claims(page, ROOT / "docs" / "claims")
    fill_judged(page)
    fill_results(page, ROOT / "docs" / "results")


def fill_judged(page: Path) -> None:
    """Put the tables of a judge.json between the two marks on a page that name it, if the file exists."""

    def tables(match: re.Match[str]) -> str:
        path = ROOT / match[2]
        if not path.is_file():
            return match[0]
        parts = []
        for head, rows in judge_tables(json.loads(path.read_text(encoding="utf-8"))):
            parts.append("".join(f"| {' | '.join(line)} |\n" for line in (head, ["---"] * len(head), *rows)))
        return match[1] + "\n".join(parts) + match[3]

    page.write_text(JUDGED.sub(tables, page.read_text(encoding="utf-8")), encoding="utf-8")


def fill_tables(page: Path) -> None:
    """Put a CSV file between the two marks on a page that name it."""

    def table(match: re.Match[str]) -> str:
        rows = read_rows(match[2])
        for condition in filter(None, (match[3] or "").split(",")):
            column, value = condition.split("=")
            rows = [row for row in rows if row[column] == value.replace("_", " ")]
        columns = {name.replace(" ", "_"): name for name in rows[0]}
        head = [columns[name] for name in match[4].split(",")] if match[4] else list(rows[0])
        lines = [head, ["---"] * len(head), *([row[column] for column in head] for row in rows)]
        return match[1] + "".join(f"| {' | '.join(line)} |\n" for line in lines) + match[5]

    page.write_text(TABLE.sub(table, page.read_text(encoding="utf-8")), encoding="utf-8")


def read_rows(path: str) -> list[dict[str, str]]:
    with (ROOT / path).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def save(name: str, figure: object) -> None:
    path = PICTURES / f"{name}.png"
    path.write_bytes(explain.png_bytes(figure, dpi=110))
    print(path)


if __name__ == "__main__":
    main()
