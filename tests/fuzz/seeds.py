"""Small files in every format, from which the fuzzer starts. The first byte of an input says how the rest is packed."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
import zlib
from functools import cache

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save

from torchcaps.data.datasets.cifar import FOLDER, RECORD, TEST_FILES, TRAIN_FILES
from torchcaps.models import create_model
from torchcaps.models.files import make_config
from torchcaps.train.recipe import load_recipe

PLAIN, PACKED = b"\0", b"\1"
BORDER = b"\xffBORDER\xff"  # between the header and the values of an input that is to become a .safetensors file


def idx() -> list[bytes]:
    shapes = [(2, 3, 4), (5,), (0, 2), (1, 1, 1, 1)]
    files = [
        bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + bytes(int(np.prod(shape)))
        for shape in shapes
    ]
    return [wrap + file for wrap in (PLAIN, PACKED) for file in files]


def norb() -> list[bytes]:
    files = []
    for magic, code in ((0x1E3D4C55, "u1"), (0x1E3D4C54, "<i4"), (0x1E3D4C51, "<f4"), (0x1E3D4C56, "<i2")):
        for shape in ((2, 3), (1, 2, 2, 2), (4,)):
            sizes = [*shape, 1, 1][: max(3, len(shape))]
            head = struct.pack(f"<{2 + len(sizes)}I", magic, len(shape), *sizes)
            files.append(head + np.zeros(shape, code).tobytes())
    return [wrap + file for wrap in (PLAIN, PACKED) for file in files]


def cifar_records() -> list[bytes]:
    return [PLAIN + b"\3" + bytes(RECORD - 1), PLAIN + bytes(2 * RECORD)]


def cifar_archive() -> list[bytes]:
    archives = []
    for style in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=style) as tar:
            for name in (FOLDER, *TRAIN_FILES, *TEST_FILES):
                member = tarfile.TarInfo(name if name == FOLDER else f"{FOLDER}/{name}")
                member.type = tarfile.DIRTYPE if name == FOLDER else tarfile.REGTYPE
                member.size = 0 if name == FOLDER else RECORD
                member.pax_headers = {"comment": "x"} if style == tarfile.PAX_FORMAT else {}
                tar.addfile(member, io.BytesIO(bytes(RECORD)))
        archives.append(out.getvalue())
    return [wrap + archive for wrap in (PLAIN, PACKED) for archive in archives]


def shard() -> list[bytes]:
    out = io.BytesIO()
    Image.new("RGB", (6, 5), "red").save(out, "PNG")
    files = {"0001.png": out.getvalue(), "0001.cls": b"1", "a/0002.png": out.getvalue(), "a/0002.json": b'{"label": 0}'}
    shards = []
    for style in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=style) as tar:
            for name, content in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                member.pax_headers = {"comment": "x"} if style == tarfile.PAX_FORMAT else {}
                tar.addfile(member, io.BytesIO(content))
        shards.append(PLAIN + out.getvalue())
    return shards


def mat() -> list[bytes]:
    from scipy.io import savemat

    fields = {"image": np.zeros((1600, 2), np.uint8), "label_int": np.array([[1.0, 2.0]])}
    files = []
    for tree in (
        {"affNISTdata": fields},
        {"x": 1, "affNISTdata": {"text": "x", "cell": np.array([1, "a"], "O"), **fields}},
    ):
        out = io.BytesIO()
        savemat(out, tree)
        files.append(out.getvalue())
    return [wrap + file for wrap in (PLAIN, PACKED) for file in files]


def recipe() -> list[bytes]:
    texts = [load_recipe(name).to_yaml() for name in ("digits", "segcaps", "capspix2pix", "affnist")]
    texts += [
        "train: {epochs: 3}\ndata:\n  source: mnist\n",
        "? a\n: - b\n  - !!int 3\n",
        "'a': \"\\u00e9\"\nb: |\n  c\n",
    ]
    return [PLAIN + text.encode() for text in texts]


def picture() -> list[bytes]:
    rng = np.random.default_rng(0)
    grey = Image.fromarray(rng.integers(0, 256, (8, 6), dtype=np.uint8))
    pictures = [grey, grey.convert("RGB"), grey.convert("P"), grey.convert("LA"), grey.convert("1")]
    pictures.append(Image.fromarray(rng.integers(0, 65536, (8, 6)).astype(np.uint16)))
    pictures.append(Image.fromarray(rng.integers(0, 2, (8, 6), dtype=np.uint8)))  # a mask
    made = []
    for kind in ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM"):
        for image in pictures:
            out = io.BytesIO()
            try:
                image.save(out, kind)
            except (OSError, ValueError, KeyError):
                continue  # a mode that the format has not got
            made.append(PLAIN + out.getvalue())
    for compression in ("tiff_lzw", "tiff_deflate", "packbits"):
        out = io.BytesIO()
        grey.save(out, "TIFF", compression=compression)
        made.append(PLAIN + out.getvalue())
    return made


def array() -> list[bytes]:
    made = []
    for code, shape in (("u1", (4, 3)), ("<f8", (2, 2)), (">i4", (3, 2, 1)), ("?", (2, 2)), ("<u2", (1, 2, 2))):
        out = io.BytesIO()
        np.save(out, np.zeros(shape, code))
        made.append(PLAIN + out.getvalue())
    return made


def table() -> list[bytes]:
    rows = [
        "file,label\na.png,x\nb.png,y\n",
        "File, Label ,more\r\na.png,x;y,1\r\nb.png,,2",
        'label,file\n"x","a.png"\ny,b.png',
    ]
    return [PLAIN + row.encode(encoding) for row in rows for encoding in ("utf-8", "utf-8-sig")]


@cache
def small_models() -> tuple[torch.nn.Module, ...]:
    torch.manual_seed(0)
    return (
        create_model("baseline_cnn", image_shape=(1, 6, 6), num_classes=2, channels=[2], kernel=3, hidden=[2]),
        create_model(
            "capsnet_small",
            image_shape=(1, 12, 12),
            num_classes=2,
            channels=2,
            types=1,
            dim=2,
            class_dim=2,
            kernel=3,
            primary_kernel=3,
            decoder="none",
        ),
        create_model(
            "em_capsnet", image_shape=(1, 13, 13), num_classes=2, channels=2, primary=1, first=1, second=1, size=2
        ),
        create_model("unet", image_shape=(1, 8, 8), num_classes=2, channels=1, depth=1),
    )


def model() -> list[bytes]:
    files = [
        save(dict(each.state_dict()), {"format": "pt", "torchcaps": json.dumps(make_config(each))})
        for each in small_models()
    ]
    return [PLAIN + file for file in files] + [PACKED + in_two(file) for file in files]


def port() -> list[bytes]:
    """State dicts of CapsNets for images of 6×6, by the names of three repositories, in both formats of torch.save."""

    def layers(*shapes: tuple[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
        return {
            f"{name}.{part}": torch.ones(shape if part == "weight" else shape[:1])
            for name, shape in shapes
            for part in ("weight", "bias")
        }

    conv, primary = ("conv1", (2, 1, 3, 3)), (4, 2, 3, 3)
    dense = layers(("decoder.0", (3, 6)), ("decoder.2", (2, 3)), ("decoder.4", (36, 2)))
    guo = layers(conv, ("primarycaps.conv2d", primary)) | {"digitcaps.weight": torch.ones(2, 2, 3, 2)}
    bielski = layers(conv, ("primaryCaps.conv", primary))
    bielski |= {"digitCaps.weights": torch.ones(2, 2, 6), "digitCaps.routing_module.b": torch.ones(2, 2)}
    gram = layers(conv, *((f"primary_capsules.capsules.{k}", (2, 2, 3, 3)) for k in range(2)))
    gram |= {"digit_capsules.route_weights": torch.ones(2, 2, 2, 3)}
    files = []
    for state in (guo, guo | dense, bielski, gram, gram | dense, {"state_dict": guo}):
        for zipped in (True, False):
            out = io.BytesIO()
            torch.save(state, out, _use_new_zipfile_serialization=zipped)
            files.append(PLAIN + out.getvalue())
    return files


def in_two(file: bytes) -> bytes:
    (length,) = struct.unpack("<Q", file[:8])
    return file[8 : 8 + length] + BORDER + file[8 + length :]


def unwrapped(name: str, data: bytes) -> bytes:
    """The file that an input stands for: compressed, or with the length of its header put right, where it says so."""
    wrap, content = data[:1], data[1:]
    if not wrap or not wrap[0] & 1:
        return content
    if name in ("model", "checkpoint"):
        header, _, body = content.partition(BORDER)
        return struct.pack("<Q", len(header)) + header + body
    if name == "affnist":
        packed = zlib.compress(content[128:], 1)
        return content[:128] + struct.pack("<II", 15, len(packed)) + packed
    return gzip.compress(content, 1, mtime=0) if name in ("idx", "smallnorb", "cifar archive") else content
