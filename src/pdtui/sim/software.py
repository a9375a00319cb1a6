"""What is installed on a simulated node and where ranks run on it: driver, firmware, CANN, Python packages, model.

Every node has files of its own, so that one can be unlike the others. Formats: the driver's and the firmware's
version.info as on an Atlas server (key=value), `ascend_toolkit_install.info` as CANN's installer writes it, and
`dist-info` folders as pip does (PyPA, «Recording installed projects»).
"""

from __future__ import annotations

import json
import os
import shutil
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pdtui.sim.npus import HARDWARE, SimPlatform

MODELS: dict[tuple[bool, bool], dict[str, object]] = {
    (True, True): {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "max_position_embeddings": 163840,
        "num_hidden_layers": 61,
        "n_routed_experts": 256,
    },
    (True, False): {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "max_position_embeddings": 163840,
        "num_hidden_layers": 64,
    },
    (False, True): {
        "architectures": ["Qwen2MoeForCausalLM"],
        "model_type": "qwen2_moe",
        "max_position_embeddings": 40960,
        "num_hidden_layers": 2,
        "num_experts": 4,
        "num_attention_heads": 4,
    },
    (False, False): {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "max_position_embeddings": 40960,
        "num_hidden_layers": 2,
    },
}
"""config.json of the simulated model: on NPUs, or one for trying things out; mixture of experts or not."""
SHARDS = 24
"""Weight files of the simulated model on NPUs; the one for trying things out has one file."""


@dataclass(frozen=True, slots=True)
class Release:
    """What vllm-ascend's image of a version holds besides."""

    cann: str
    mooncake: str
    mooncake_name: str = "mooncake-transfer-engine"
    torch: str = "2.9.0"


_RELEASES = {
    "0.9": Release("8.2.RC1", "0.3.6", torch="2.5.1"),
    "0.11": Release("8.3.RC2", "0.3.7.post2", torch="2.7.1"),
    "0.13": Release("8.5.0", "0.3.7.post2", torch="2.8.0"),
    "0.18": Release("8.5.1", "0.3.9"),
    "0.20": Release("8.5.1", "0.3.8.post1"),
    "0.22": Release("9.0.0", "0.3.9"),
    "0.23": Release("9.1.0", "0.3.11.post1", "mooncake-transfer-engine-npu"),
}
"""By release of vllm-ascend (its release notes and Dockerfiles); newer ones are taken for the newest here."""
_CPU = Release("", "0.3.13.post1", "mooncake-transfer-engine-non-cuda")

PACKAGE_WORDS = ("vllm", "vllm-ascend", "torch-npu", "mooncake")


def release_of(version: str) -> Release:
    """Return what belongs to a version of vllm-ascend."""
    return _RELEASES.get(".".join(version.split(".")[:2]), _RELEASES["0.23"])


@dataclass(frozen=True, slots=True)
class Software:
    """The versions on a node."""

    platform: SimPlatform
    vllm: str
    vllm_ascend: str

    @property
    def release(self) -> Release:
        """What goes with it."""
        return _CPU if self.platform == "cpu" else release_of(self.vllm_ascend)

    @property
    def packages(self) -> Mapping[str, tuple[str, str]]:
        """Word of a fault -> (name of the package, its version)."""
        release = self.release
        mooncake = (release.mooncake_name, release.mooncake)
        if self.platform == "cpu":
            return {"vllm": ("vllm", self.vllm), "mooncake": mooncake}
        return {
            "vllm": ("vllm", f"{self.vllm}+empty"),
            "vllm-ascend": ("vllm-ascend", self.vllm_ascend),
            "torch-npu": ("torch-npu", release.torch),
            "mooncake": mooncake,
        }


def site_packages(base: Path) -> Path:
    """Return the folder of Python packages below the root folder of a host or a container."""
    return base / "usr" / "local" / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"


def write_packages(base: Path, software: Software, interpreter: str) -> None:
    """Make /usr/local a Python environment of its own with the packages that ranks need.

    `python3` there is a link to this machine's; what makes it an environment is pyvenv.cfg (PEP 405).
    """
    site = site_packages(base)
    site.mkdir(parents=True, exist_ok=True)
    text = f"home = {Path(interpreter).parent}\ninclude-system-site-packages = false\n"
    (base / "usr" / "local" / "pyvenv.cfg").write_text(text, encoding="utf-8")
    for word in software.packages:
        write_package(base, software, word)


def _info(site: Path, name: str) -> list[Path]:
    return list(site.glob(f"{name.replace('-', '_')}-*.dist-info"))


def write_package(base: Path, software: Software, word: str, version: str = "") -> None:
    """Install a package in another version, or the right one."""
    name, right = software.packages[word]
    site = site_packages(base)
    remove_package(base, software, word)
    info = site / f"{name.replace('-', '_')}-{version or right}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version or right}\n", encoding="utf-8"
    )
    (info / "INSTALLER").write_text("pip\n", encoding="ascii")
    module = site / ("mooncake" if word == "mooncake" else name.replace("-", "_"))
    module.mkdir(exist_ok=True)
    (module / "__init__.py").write_text(f'__version__ = "{version or right}"\n', encoding="utf-8")
    if word == "mooncake":
        (module / "engine.py").write_text(_ENGINE, encoding="utf-8")
    elif word == "vllm":
        (module / "_version.py").write_text(f'__version__ = version = "{version or right}"\n', encoding="utf-8")


def remove_package(base: Path, software: Software, word: str) -> None:
    """Take a package away."""
    name, _ = software.packages[word]
    site = site_packages(base)
    for path in (*_info(site, name), site / ("mooncake" if word == "mooncake" else name.replace("-", "_"))):
        shutil.rmtree(path, ignore_errors=True)


_ENGINE = '''\
"""The transfer engine, as far as an import can tell."""


class TransferEngine:
    """Moves KV blocks."""
'''
_BROKEN_ENGINE = """\
raise ImportError(
    "libascend_transport_mem.so: cannot open shared object file: No such file or directory"
)
"""
_HANGING_ENGINE = "import time\n\nwhile True:\n    time.sleep(3600)\n"


def break_mooncake(base: Path, how: str) -> None:
    """Have the import of the transfer engine fail for want of a library (`broken`), or never end (`hang`)."""
    engine = site_packages(base) / "mooncake" / "engine.py"
    if engine.parent.is_dir():
        engine.write_text(_BROKEN_ENGINE if how == "broken" else _HANGING_ENGINE, encoding="utf-8")
        shutil.rmtree(engine.parent / "__pycache__", ignore_errors=True)


# ---- files of the vendor


def driver_text(version: str) -> str:
    """Return the driver's version.info."""
    return (
        f"Version={version}\nascendhal_version=7.35.23\naicpu_version=1.0\ntdt_version=1.0\nlog_version=1.0\n"
        f"prof_version=2.0\ndvppkernels_version=1.1\ntsfw_version=1.0\nInnerversion=V100R001C25SPC002B220\n"
        f"compatible_version=[V100R001C23],[V100R001C25]\ncompatible_version_fw=[7.0.0,7.9.9]\n"
        f"package_version={version}\n"
    )


def firmware_text(version: str) -> str:
    """Return the firmware's version.info."""
    return (
        f"Version={version}\nfirmware_version=1.0\npackage_version=25.5.1\n"
        "compatible_version_drv=[25.0.rc1,25.0.rc1.],[25.5.0,25.5.9]\n"
    )


def cann_text(version: str, root: str) -> str:
    """Return what CANN's installer leaves in a toolkit's folder."""
    machine = os.uname().machine
    return (
        f"package_name=Ascend-cann-toolkit\nversion={version}\ninnerversion=V100R001C25SPC001B248\n"
        f"compatible_version=[V100R001C23],[V100R001C25]\narch={machine}\nos=linux\n"
        f"path={root}/{version}/{machine}-linux\n"
    )


def cann_file(toolkit: str) -> str:
    """Return where that lies below the root folder, for the toolkit's own folder."""
    return f"{toolkit.lstrip('/')}/latest/{os.uname().machine}-linux/ascend_toolkit_install.info"


PORT_RANGE = "proc/sys/net/ipv4/ip_local_port_range"
"""Below the root folder: ports that outgoing connections take."""
RESERVED_PORTS = "proc/sys/net/ipv4/ip_local_reserved_ports"
"""Ports that the kernel keeps from outgoing connections."""
RESERVED = "60000-60063"
"""What a well-kept server keeps for HCCL (hccl's HCCL_IF_BASE_PORT is 60000)."""
DRIVER_FILE = "usr/local/Ascend/driver/version.info"
FIRMWARE_FILE = "usr/local/Ascend/firmware/version.info"
INSTALL_FILE = "etc/ascend_install.info"
_LIBRARIES = ("driver/libdrvdsmi_host.so", "driver/libascend_hal.so", "common/libc_sec.so")
DEVICES = ("davinci_manager", "devmm_svm", "hisi_hdc")


def device_names(platform: SimPlatform) -> tuple[str, ...]:
    """Return the device files of a server's NPUs."""
    return (*(f"davinci{phy}" for phy in range(HARDWARE[platform].count)), *DEVICES)


def write_vendor_files(base: Path, platform: SimPlatform) -> None:
    """Write what driver and firmware leave on a host."""
    hardware = HARDWARE[platform]
    texts = {
        DRIVER_FILE: driver_text(hardware.version),
        FIRMWARE_FILE: firmware_text(hardware.firmware),
        INSTALL_FILE: "Driver_Install_Path_Param=/usr/local/Ascend\nUserName=HwHiAiUser\nUserGroup=HwHiAiUser\n",
        "usr/local/dcmi/dcmi_interface_api.h": "",
        **{f"usr/local/Ascend/driver/lib64/{name}": "" for name in _LIBRARIES},
    }
    for name, text in texts.items():
        path = base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def write_cann(base: Path, toolkits: tuple[str, ...], version: str) -> None:
    """Write what CANN's installer leaves where ranks run."""
    for root in toolkits:
        path = base / cann_file(root)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(cann_text(version, root), encoding="utf-8")


# ---- the model


def write_model(folder: Path, *, npus: bool, moe: bool) -> None:
    """Write the model's folder: configuration, tokenizer, index, and weights that are holes."""
    folder.mkdir(parents=True, exist_ok=True)
    shards = SHARDS if npus else 1
    names = [f"model-{number:05d}-of-{shards:05d}.safetensors" for number in range(1, shards + 1)]
    texts: dict[str, object] = {
        "config.json": MODELS[npus, moe],
        "generation_config.json": {"do_sample": True, "temperature": 0.6, "top_p": 0.95},
        "tokenizer_config.json": {"model_max_length": 163840, "tokenizer_class": "LlamaTokenizerFast"},
        "model.safetensors.index.json": {
            "metadata": {"total_size": len(names) << 20},
            "weight_map": {f"model.layers.{number}.weight": name for number, name in enumerate(names)},
        },
    }
    if npus:
        texts["quant_model_description.json"] = {"model_quant_type": "W8A8_DYNAMIC"}
    for name, value in texts.items():
        (folder / name).write_text(json.dumps(value), encoding="utf-8")
    for name in names:
        with (folder / name).open("wb") as file:
            file.truncate(1 << 20)
