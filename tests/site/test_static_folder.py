"""The folder for a static host: what is in it, when it is written, and when it is not."""

import json
import re
import tarfile

import pytest
import torch

from torchcaps.commands.answering import serve
from torchcaps.errors import UserError
from torchcaps.models import create_model
from torchcaps.serve.examples import ExampleImages
from torchcaps.serve.served_models import ServedModel
from torchcaps.site import folder as site
from torchcaps.site import runtime

IMAGES = torch.rand(3, 1, 28, 28, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def fake_runtime(tmp_path_factory):
    """A package that has the files, but not the contents, of the runtime."""
    package = tmp_path_factory.mktemp("package")
    (package / "dist").mkdir()
    for name in runtime.FILES:
        (package / name).write_text("//")
    return package


@pytest.fixture(scope="module")
def written(tmp_path_factory, fake_runtime):
    """A folder with a small network for comparison."""
    path = tmp_path_factory.mktemp("made") / "explorer"
    torch.manual_seed(0)
    model = create_model("matched_cnn", image_shape=(1, 28, 28), parameters=20_000).eval()
    examples = ExampleImages("data", "Test images.", IMAGES, [[1], [2], [3, 4]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site, "load_models", lambda name: [ServedModel("my net", model, examples=examples)])
        found = site.write_site("my net", path, fake_runtime)
        assert found.models == ["my net"]
        assert found.difference < 1e-4
        yield path


def test_the_page_names_only_files_of_the_folder(written):
    page = (written / "index.html").read_text(encoding="utf-8")
    links = re.findall(r'(?:src|href)="([^#"]+)"', page)
    modules = [*written.glob("static/*.js"), *written.glob("answers/*.js")]
    imports = [
        (path.parent / name) for path in modules for name in re.findall(r'from "(\S+)"', path.read_text("utf-8"))
    ]
    assert len(links) > 5
    assert len(imports) > 50
    assert all((written / link).is_file() for link in links)
    assert all(path.is_file() for path in imports)
    assert "docs" not in links  # there is no API
    assert not re.search(r"https?://(?!www\.w3\.org)", "".join(path.read_text("utf-8") for path in modules) + page)


def test_the_page_has_the_servers_policy_and_may_compile_programs(written):
    from torchcaps.serve.middleware import CONTENT_SECURITY_POLICY

    page = (written / "index.html").read_text(encoding="utf-8")
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    rules, served = ({rule.strip() for rule in text.split(";")} for text in (policy, CONTENT_SECURITY_POLICY))
    assert rules - served == {"script-src 'self' 'wasm-unsafe-eval'", "worker-src 'self'"}
    assert served - rules == {
        "script-src 'self'",
        "font-src 'self'",
        "frame-ancestors 'none'",
    }  # the last is a header's


def test_models_are_described_and_examples_are_exact(written):
    described = json.loads((written / "models" / "models.json").read_text())
    own = json.loads((written / "models" / "programs.json").read_text())["programs"]["my net"]
    assert described["models"][0]["examples"]["images"][2]["classes"] == ["3", "4"]
    assert own["sizes"] == {"encode": (written / "models" / own["folder"] / "encode.onnx").stat().st_size}
    examples = torch.frombuffer(
        bytearray((written / "models" / own["folder"] / "examples.bin").read_bytes()), dtype=torch.float32
    )
    assert torch.equal(examples.view(3, 1, 28, 28), IMAGES)
    assert (written / "runtime" / "LICENSE").read_text().startswith("MIT License")


def test_an_explorer_is_replaced_and_other_folders_are_refused(written, fake_runtime, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(site, "write_program", lambda program, path: path.write_text("new") / 10)
        site.write_site("my net", written, fake_runtime)
    assert (written / "models" / "0" / "encode.onnx").read_text() == "new"

    def fail(*arguments):
        raise UserError("no programs today")

    monkeypatch.setattr(site, "write_program", fail)
    with pytest.raises(UserError, match="my net cannot be written for a static host: no programs today"):
        site.write_site("my net", written, fake_runtime)
    assert (written / "index.html").is_file()  # the older one stays
    assert [path.name for path in written.parent.iterdir()] == [written.name]
    (written / "CNAME").write_text("mine")
    with pytest.raises(UserError, match="it has other files, such as CNAME, which would be lost"):
        site.write_site("my net", written, fake_runtime)
    (written / "CNAME").unlink()
    site.check_folder(written)
    with pytest.raises(UserError, match="that is a file"):
        site.check_folder(written / "index.html")


def test_packages_of_the_runtime_are_checked(tmp_path, fake_runtime, monkeypatch):
    archive = tmp_path / "package.tgz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(fake_runtime, "package")
    with pytest.raises(UserError, match="its checksum differs"):
        runtime.write_runtime(tmp_path, archive)
    with pytest.raises(UserError, match="give the package onnxruntime-web"):
        runtime.write_runtime(tmp_path, tmp_path / "missing")
    with pytest.raises(UserError, match=r"cannot read .*dist"):
        runtime.write_runtime(tmp_path, tmp_path)
    monkeypatch.setattr(runtime, "kept_package", lambda: tmp_path / "cache" / "package.tgz")
    monkeypatch.setattr(runtime.shutil, "which", lambda name: None)
    with pytest.raises(
        UserError, match="npm, which is not installed; install Node.js, or run npm pack onnxruntime-web@"
    ):
        runtime.write_runtime(tmp_path)


def test_npm_that_fails_gives_its_reason(tmp_path, monkeypatch):
    npm = tmp_path / "npm"
    npm.write_text("#!/bin/sh\necho 'npm error network' >&2\nexit 1\n")
    npm.chmod(0o755)
    monkeypatch.setattr(runtime, "kept_package", lambda: tmp_path / "cache" / "package.tgz")
    monkeypatch.setattr(runtime.shutil, "which", lambda name: str(npm))
    with pytest.raises(UserError, match=r"npm could not fetch .*\(npm error network\): check the network"):
        runtime.write_runtime(tmp_path)
    assert not list((tmp_path / "cache").iterdir())


def test_options_of_a_server_are_refused(tmp_path):
    with pytest.raises(UserError, match="omit them with --static"):
        serve(static=tmp_path / "new", port=9000)
    with pytest.raises(UserError, match="--runtime is for --static"):
        serve(runtime=tmp_path)
    (tmp_path / "mine.txt").write_text("text")
    with pytest.raises(UserError, match="which would be lost"):
        serve(static=tmp_path)
