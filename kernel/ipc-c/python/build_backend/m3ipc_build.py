"""Builds the wheel of m3ipc: the package is pure Python, so it is a zip file with a record (PEP 517, PEP 427)."""

import base64
import hashlib
import pathlib
import re
import tarfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
NAME = "m3ipc"
WHEEL = "Wheel-Version: 1.0\nGenerator: m3ipc_build\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
# The earliest date that a zip file knows: the same sources give the same file.
DATE = (1980, 1, 1, 0, 0, 0)


def _field(name):
    project = (ROOT / "pyproject.toml").read_text().split("[project]")[1]
    return re.search(rf'^{name} = "(.*)"$', project, re.MULTILINE).group(1)


def _metadata():
    lines = ["Metadata-Version: 2.1", f"Name: {NAME}", f"Version: {_field('version')}"]
    lines += [f"Summary: {_field('description')}", f"Requires-Python: {_field('requires-python')}", "License: Apache-2.0"]
    return "\n".join(lines) + "\n"


def _info():
    return f"{NAME}-{_field('version')}.dist-info"


def _sources():
    return sorted((ROOT / NAME).glob("*.py"))


def _record(name, data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


def _write_wheel(directory, files):
    files = files + [(f"{_info()}/METADATA", _metadata().encode()), (f"{_info()}/WHEEL", WHEEL.encode())]
    record = "".join(_record(name, data) for name, data in files) + f"{_info()}/RECORD,,\n"
    files = files + [(f"{_info()}/RECORD", record.encode())]
    wheel = f"{NAME}-{_field('version')}-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(directory) / wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files:
            entry = zipfile.ZipInfo(name, DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data)
    return wheel


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return _write_wheel(wheel_directory, [(f"{NAME}/{path.name}", path.read_bytes()) for path in _sources()])


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    return _write_wheel(wheel_directory, [(f"{NAME}.pth", f"{ROOT}\n".encode())])


def build_sdist(sdist_directory, config_settings=None):
    base = f"{NAME}-{_field('version')}"
    with tarfile.open(pathlib.Path(sdist_directory) / f"{base}.tar.gz", "w:gz") as archive:
        for path in [ROOT / "pyproject.toml", pathlib.Path(__file__).resolve(), *_sources()]:
            archive.add(path, f"{base}/{path.relative_to(ROOT)}")
    return f"{base}.tar.gz"
