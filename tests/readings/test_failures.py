"""What the tools, the loader, the shell and the container runtime say when there is no answer."""

from __future__ import annotations

import pytest

from pdtui.readings.answer import Answer, Failure, failure_of
from pdtui.readings.npu_smi import read_table
from pdtui.readings.npu_smi_kinds import NPU_SMI
from pdtui.readings.words import failure_words, remedy_of
from tests.readings.samples import answered, said, sample

USAGE = "Usage: npu-smi info <watch|proc|-h|-m|-l|-t type> [Options...]"

TEXTS: tuple[tuple[str, int, Failure], ...] = (
    # hccn_tool, with its exit status.
    ("Command execute failed!", 1, Failure.ERROR),
    ("The cmd line execute timeout!", 1, Failure.TIMEOUT),
    ("Get invalid major cmd type.\nEnter [ hccn_tool -h ] for more details.", 1, Failure.UNSUPPORTED),
    ("Get invalid major cmd.", 3, Failure.UNSUPPORTED),
    ("Get gateway failed, because no gateway was preset there!", 2, Failure.NOT_CONFIGURED),
    ("Get unknown option!", 3, Failure.ERROR),
    ("Get device health status failed!", 3, Failure.DRIVER),
    ("Get invalid device id.", 4, Failure.NO_DEVICE),
    ("The device is not exist!", 4, Failure.NO_DEVICE),
    ("The total count of input parameters is wrong!", 4, Failure.ERROR),
    ("The ip address you configured is invalid!", 6, Failure.ERROR),
    ("hccn_tool is busy, please try again.", 11, Failure.BUSY),
    ("permission denied: pls check this cmd run permission.", 12, Failure.PERMISSION),
    ("permission denied: pls check this cmd run environment.", 12, Failure.PERMISSION),
    ("I2c is busy. Please try again.", 12, Failure.BUSY),
    ("Get ipconf failed, because no ip was preset there!", 13, Failure.NOT_CONFIGURED),
    ("Get ip failed, because no ip was preset there!", 13, Failure.NOT_CONFIGURED),
    ("The command is not supported on this product.", 13, Failure.UNSUPPORTED),
    ("The command is not supported on this optical media.", 14, Failure.UNSUPPORTED),
    ("No certificate found, please set certs firstly!", 14, Failure.NOT_CONFIGURED),
    ("Control link unreachable.", 15, Failure.ERROR),
    ("The system is in optical module initializing, please try again later.", 18, Failure.BUSY),
    ("Optical module is not present.", 20, Failure.NOT_CONFIGURED),
    ("The VM does not support this command.", 21, Failure.UNSUPPORTED),
    ("Execute failed: Link status is down.", 22, Failure.ERROR),
    ("Get lock failed. Please try again.", 25, Failure.BUSY),
    (
        "The hccn.conf can't access, cmd execute failed! pls check the conf file or cmd run permission.",
        29,
        Failure.PERMISSION,
    ),
    ("The conf file can't access, cmd execute failed!", 30, Failure.PERMISSION),
    ("The device is occupied. Please try again later.", 31, Failure.BUSY),
    ("Cmd execute failed!", 77, Failure.ERROR),
    # npu-smi.
    ("dcmi module initialize failed. ret is -8005", 187, Failure.DRIVER),
    ("dcmi model initialized failed, because the device is used. ret is -8020", 172, Failure.DRIVER),
    ("npu get board type failed. ret is -9001", 1, Failure.DRIVER),
    ("Failed to execute npu-smi info. ret is -8012.", 1, Failure.DRIVER),
    ("Failed to execute npu-smi info. ret is -8002.", 1, Failure.PERMISSION),
    ("Failed to execute npu-smi info. ret is -8006.", 1, Failure.TIMEOUT),
    ("Failed to execute npu-smi info. ret is -8008.", 1, Failure.NO_DEVICE),
    ("Failed to execute npu-smi info. ret is -8255.", 1, Failure.UNSUPPORTED),
    (f"Invalid card id.\nError parameter of -i\n{USAGE}", 1, Failure.NO_DEVICE),
    (f"Invalid chip id.\nError parameter of -c\n{USAGE}", 1, Failure.NO_DEVICE),
    (f"Error parameter of -t\n{USAGE}", 1, Failure.UNSUPPORTED),
    ("This device does not support querying spod-info.", 0, Failure.UNSUPPORTED),
    ('Failed to query "ecc" result.', 1, Failure.ERROR),
    ("This command cannot be executed on a VM or container.", 1, Failure.UNSUPPORTED),
    ("There is no NPU card on this server.", 1, Failure.NO_DEVICE),
    ("Failed to get card number.", 1, Failure.DRIVER),
    ("Failed to query card total info.", 1, Failure.DRIVER),
    ("This command must input card id and chip id.", 1, Failure.ERROR),
    # Around the tools.
    ("bash: /usr/local/bin/npu-smi: No such file or directory", 127, Failure.ENVIRONMENT),
    ("sh: 1: npu-smi: not found", 127, Failure.ENVIRONMENT),
    ("bash: npu-smi: command not found", 127, Failure.ENVIRONMENT),
    ("bash: npu-smi: 未找到命令", 127, Failure.ENVIRONMENT),
    ("timeout: failed to run command 'npu-smi': No such file or directory", 127, Failure.ENVIRONMENT),
    ('exec: "npu-smi": executable file not found in $PATH', 126, Failure.ENVIRONMENT),
    ("Error response from daemon: No such container: vllm", 1, Failure.ENVIRONMENT),
    ("bash: /usr/local/sbin/npu-smi: Permission denied", 126, Failure.PERMISSION),
    ("bash: /usr/local/sbin/npu-smi: 权限不够", 126, Failure.PERMISSION),
    ("sudo: a password is required", 1, Failure.PERMISSION),
    ("npu-smi: cannot execute binary file: Exec format error", 126, Failure.ENVIRONMENT),
    ("", 0, Failure.EMPTY),
    ("\n  \n", 0, Failure.EMPTY),
    ("", 1, Failure.ERROR),
    ("", -9, Failure.ERROR),
    ("", 124, Failure.TIMEOUT),
    ("", 137, Failure.TIMEOUT),
    ("dcmi module initialize failed. ret is -8005", 124, Failure.TIMEOUT),
)


@pytest.mark.parametrize(("text", "status", "failure"), TEXTS)
def test_a_text_of_failure_has_its_class_on_either_stream(text: str, status: int, failure: Failure) -> None:
    before = "DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)\n" if text.strip() else ""
    warning = '[WARNING] "/var/log/hccn_tool" is not a directory, hccn_tool logs may be lost.\n' if before else ""
    assert failure_of(said(text, "", status)) is failure
    assert failure_of(said("", text, status)) is failure
    assert failure_of(said(before + warning + text, "", status)) is failure
    assert failure_of(said(warning, text, status)) is failure or not text.strip()
    pasted = "".join(f"        {line}\n" for line in text.splitlines())
    assert failure_of(said(pasted, "", status)) is failure


def test_every_class_of_failure_is_in_the_table() -> None:
    assert {failure for _, _, failure in TEXTS} == set(Failure) - {Failure.UNREADABLE, Failure.MISSING}


def test_only_asides_and_nothing_else_is_no_value() -> None:
    text = "DrvMngGetConsoleLogLevel failed. (ret=4)\n[WARNING]The driver package may not be complete\n"
    for kind in NPU_SMI.values():
        assert kind.read(said(text)).failure is Failure.UNREADABLE


def test_what_could_not_be_started_is_told_by_the_system() -> None:
    missing = Answer("npu-smi info", status=None, error="No such file or directory: 'npu-smi'")
    assert failure_of(missing) is Failure.ENVIRONMENT
    assert failure_of(Answer("npu-smi info", status=None, error="Permission denied")) is Failure.PERMISSION


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dcmi module initialize failed. ret is -8005", "no permission, or the driver is not loaded (-8005)"),
        (
            "dcmi model initialized failed, because the device is used. ret is -8020",
            "the device is held by another container or VM (-8020)",
        ),
        ("Failed to execute npu-smi info. ret is -8015.", "the device is being reset (-8015)"),
        ("Failed to execute npu-smi info. ret is -8017.", "the device's firmware is being upgraded (-8017)"),
        ("Failed to execute npu-smi info. ret is -8011.", "the driver does not answer (-8011)"),
        ('Failed to query "ecc" result.', 'the tool failed (Failed to query "ecc" result.)'),
    ],
)
def test_words_say_what_a_code_means(text: str, words: str) -> None:
    aside = "DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)\n"
    assert failure_words(read_table(said(aside + text + "\n", "", 1))) == words


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("dcmi module initialize failed. ret is -8005", "HwHiAiUser"),
        ("dcmi model initialized failed, because the device is used. ret is -8020", "container or VM that has it"),
        ("Failed to execute npu-smi info. ret is -8015.", "wait a minute"),
        (sample("npu_smi_fail_loader_libc_sec.txt").decode(), "LD_LIBRARY_PATH"),
        ("Error response from daemon: No such container: vllm", "runtime.container"),
        (sample("npu_smi_fail_not_found.txt").decode(), "install the driver, or mount it"),
    ],
)
def test_what_to_do_is_about_what_was_said(text: str, remedy: str) -> None:
    assert remedy in remedy_of(read_table(said(text + "\n", "", 1)))


@pytest.mark.parametrize(
    "trap",
    [
        "permission denied",
        "hccn_tool is busy",
        "command not found",
        "not supported",
        "ret is -8005",
        "no ip was preset",
        "npu-smi: not found",
    ],
)
def test_a_name_inside_an_answer_is_no_failure(trap: str) -> None:
    wide = 17
    table = sample("npu_smi_info_wide_busy.a3.txt").decode().replace("VLLMWorker_PP     ", f"{trap:<18}")
    processes = sample("npu_smi_proc_mem.a2.txt").decode().replace(f"{'python':<{wide}}", f"{trap:<{wide}}")
    product = sample("npu_smi_product.300iduo.txt").decode().replace("Atlas 300I Duo", trap)
    board = sample("npu_smi_board.a2.txt").decode().replace("IT21HMDC_Bin5", trap)
    for kind, text in (("", table), ("proc-mem", processes), ("product", product), ("board", board)):
        assert trap in text
        reading = NPU_SMI[kind].read(said(text))
        assert reading.failure is None, kind
        assert trap in str(reading.value)


def test_a_failure_beside_an_answer_is_a_failure() -> None:
    text = sample("npu_smi_health_ok.a1.txt").decode()
    assert (
        NPU_SMI["health"].read(said(text + 'Failed to query "health" result.\n', "", 1)).failure is Failure.ERROR
    )
    late = Answer("npu-smi", text.encode(), timed_out=True)
    assert NPU_SMI["health"].read(late).failure is Failure.TIMEOUT


@pytest.mark.parametrize(
    "text",
    [
        "\t健康状态                       : 正常\n\t错误码                         : NA\n",
        "+--------+\n| NPU 名称 | 健康状态 | 功率 |\n+========+\n| 0 910B3 | 正常 | 90 |\n+========+\n",
        "查询失败。\n",
    ],
)
def test_an_answer_in_another_language_is_unreadable_and_never_a_value(text: str) -> None:
    for kind in NPU_SMI.values():
        assert kind.read(said(text)).failure is Failure.UNREADABLE
    assert read_table(said(text, "", 1)).failure is Failure.ERROR


def test_an_answer_that_does_not_end_its_last_line_may_be_cut_in_a_number() -> None:
    spod = sample("npu_smi_spod_info_dev0.a3.txt")
    assert NPU_SMI["spod-info"].read(Answer("npu-smi", spod)).value is not None
    assert NPU_SMI["spod-info"].read(Answer("npu-smi", spod.rstrip()[:-1])).failure is Failure.UNREADABLE
    assert answered("npu_smi_spod_info_dev0.a3.txt").stdout.endswith(b"\n")
