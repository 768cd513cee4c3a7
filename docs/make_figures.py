"""Make every picture of the README and the docs again, from the shipped weights and the embedded digits.

make figures
"""

from __future__ import annotations

from pathlib import Path

import torch

import torchcaps
from torchcaps import explain
from torchcaps.data import load_data

PICTURES = Path(__file__).parent / "pictures"


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    model = torchcaps.load("capsnet-digits")
    test = load_data(**model.trained_by["data"]).test
    assert test is not None
    # The first test image of each digit: nothing is picked by how good it looks.
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


def save(name: str, figure: object) -> None:
    path = PICTURES / f"{name}.png"
    path.write_bytes(explain.png_bytes(figure, dpi=110))
    print(path)


if __name__ == "__main__":
    main()
