"""The device lock between real processes, and against what may lie in its directory."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from fp4tune.kernels.device import Device, detect
from fp4tune.kernels.errors import BusyError, UnsupportedError
from fp4tune.tuner.workers import device_lock
from fp4tune.tuner.workers.device_lock import DeviceLock, lock_directory

H200 = Device("cuda", "NVIDIA H200", "9.0", 132, 140 << 30, 50 << 20, 700.0)
UUID = "GPU-0a1b2c3d-0000-0000-0000-000000000000"

HOLD = """
import sys, time
from pathlib import Path
from fp4tune.kernels.device import Device
from fp4tune.tuner.workers.device_lock import DeviceLock
device = Device("cuda", "NVIDIA H200", "9.0", 132, 140 << 30, 50 << 20, 700.0)
lock = DeviceLock(device, command="fp4tune tune --shape 1x64x64", directory=Path(sys.argv[1]), uuid=sys.argv[2])
lock.acquire()
print("held", flush=True)
sys.stdin.readline()
lock.release()
"""


def lock(directory: Path, *, uuid: str = UUID, command: str = "fp4tune noise") -> DeviceLock:
    return DeviceLock(H200, command=command, directory=directory, uuid=uuid)


@pytest.fixture
def other(tmp_path):
    """Starts processes that hold the lock until their standard input says otherwise."""
    started = []

    def start(uuid=UUID):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(tmp_path), uuid], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_the_holder_is_named(other, tmp_path):
    process = other()
    with pytest.raises(BusyError) as caught:
        lock(tmp_path).acquire()
    since = time.strftime("%H:%M")
    said = str(caught.value)
    assert said.startswith(
        f"GPU NVIDIA H200 ({UUID}) is in use by fp4tune tune --shape 1x64x64 (pid {process.pid}, user "
    )
    assert said.endswith("; wait with --wait.")
    assert f"since {since[:2]}" in said
    assert ", host" not in said, "it is this one"


def test_another_device_is_free(other, tmp_path):
    other("GPU-another")
    mine = lock(tmp_path)
    mine.acquire()
    with mine:
        assert mine.holder().pid == os.getpid()


def test_a_killed_holder_frees_it(other, tmp_path):
    process = other()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    mine = lock(tmp_path)
    assert mine.holder() is None, "what the file still says is nobody's"
    mine.acquire()
    mine.release()


def test_waiting_ends_when_the_holder_does(other, tmp_path):
    process = other()
    told = []

    def tell(sentence):
        told.append(sentence)
        process.stdin.write("\n")
        process.stdin.flush()

    mine = lock(tmp_path)
    mine.wait(60, tell=tell)
    assert mine.holder().pid == os.getpid()
    mine.release()
    assert told[0].startswith(f"waiting for GPU NVIDIA H200 ({UUID}), in use by fp4tune tune --shape 1x64x64 (pid ")
    assert len(told) == 1, "said once for one holder"


def test_waiting_has_an_end(other, tmp_path):
    other()
    with pytest.raises(BusyError, match="is in use by fp4tune tune"):
        lock(tmp_path).wait(0)


def test_of_many_processes_one_holds_it(tmp_path):
    """Each counts while it holds the lock; a second holder would see the count of the first."""
    code = HOLD.replace(
        'lock.acquire()\nprint("held", flush=True)\nsys.stdin.readline()\n',
        "import os\n"
        "for _ in range(20):\n"
        "    lock.wait()\n"
        "    fd = os.open(sys.argv[1] + '/inside', os.O_CREAT | os.O_EXCL)\n"  # fails if anybody else is inside
        "    time.sleep(0.002)\n"
        "    os.unlink(sys.argv[1] + '/inside'); os.close(fd)\n"
        "    lock.release()\n"
        "print('done')\n",
    ).replace(
        "import sys, time",
        "import sys, time\nfrom fp4tune.tuner.workers import device_lock\ndevice_lock.POLL_S = 0.001",
    )
    started = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), UUID], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    assert [process.communicate(timeout=120)[0] for process in started] == ["done\n"] * 4


def test_a_child_does_not_keep_the_lock_of_its_parent(tmp_path):
    mine = lock(tmp_path)
    mine.acquire()
    child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        mine.release()
        again = lock(tmp_path)
        again.acquire()
        again.release()
    finally:
        child.kill()
        child.wait()


def test_a_context_needs_a_lock_that_is_held(tmp_path):
    with pytest.raises(RuntimeError), lock(tmp_path):
        pass
    mine = lock(tmp_path)
    mine.acquire()
    with mine:
        assert mine.holder().command == "fp4tune noise"
    assert mine.holder() is None
    mine.release()


def test_a_cpu_is_not_locked(tmp_path):
    first, second = (DeviceLock(detect("cpu"), command="x", directory=tmp_path) for _ in range(2))
    first.acquire()
    with first:
        second.acquire()
        assert first.holder() is None
        assert first.path is None
    assert not list(tmp_path.iterdir())


def test_every_user_may_take_it(tmp_path):
    before = os.umask(0o077)
    try:
        mine = lock(tmp_path)
        mine.acquire()
    finally:
        os.umask(before)
    assert stat.S_IMODE(mine.path.stat().st_mode) == 0o666
    mine.release()
    assert mine.path.exists(), "a lock file is never removed: somebody may be about to lock it"
    assert mine.path.read_text() == ""


def test_a_file_that_is_removed_while_it_is_held_does_not_hand_out_a_lock_on_nothing(tmp_path):
    mine = lock(tmp_path)
    mine.acquire()
    mine.path.unlink()
    another = lock(tmp_path)
    another.acquire()
    assert another.path.exists()
    assert os.path.samestat(os.fstat(another._fd), another.path.stat())


def test_a_link_is_not_followed(tmp_path):
    target = tmp_path / "precious"
    target.write_text("mine")
    path = lock(tmp_path).path
    path.symlink_to(target)
    with pytest.raises(UnsupportedError, match="it is a symbolic link"):
        lock(tmp_path).acquire()
    path.unlink()
    os.link(target, path)
    with pytest.raises(UnsupportedError, match="no plain file"):
        lock(tmp_path).acquire()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UnsupportedError, match="no plain file"):
        lock(tmp_path).acquire()
    path.unlink()
    path.mkdir()
    with pytest.raises(UnsupportedError, match="Is a directory"):
        lock(tmp_path).acquire()
    assert target.read_text() == "mine"


@pytest.mark.parametrize(
    "text",
    [
        b"\x00\xff",
        b"[]",
        b"null",
        b'{"pid": "x"}',
        b'{"pid":1,"user":"a","host":"b","command":"c","since":"1999-01-01"}',
    ],
)
def test_a_holder_that_writes_nonsense_is_an_unknown_process(other, tmp_path, text):
    other()
    mine = lock(tmp_path)
    mine.path.write_bytes(text)
    with pytest.raises(BusyError, match="in use by an unknown process"):
        mine.acquire()


def test_what_a_holder_writes_cannot_do_anything_to_a_terminal(other, tmp_path):
    other()
    mine = lock(tmp_path)
    mine.path.write_text(
        '{"pid":1,"user":"a\\u001b[2J","host":"b","command":"%s","since":"2026-01-01T00:00:00+00:00"}' % ("x" * 3000)
    )
    with pytest.raises(BusyError) as caught:
        mine.acquire()
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 500
    assert ", host b" in str(caught.value)
    assert ", since 202" in str(caught.value), "with its date, if it is not today"


def test_the_directory_is_one_that_every_user_can_write_to(monkeypatch, tmp_path):
    private, shared = tmp_path / "private", tmp_path / "shared"
    private.mkdir()
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setattr(device_lock, "SHARED_DIRECTORIES", (tmp_path / "missing", private, shared))
    assert lock_directory() == shared
    shared.chmod(0o777)  # without the sticky bit anybody may remove anybody's lock
    with pytest.raises(UnsupportedError, match="set FP4TUNE_LOCK_DIR"):
        lock_directory()
    assert lock_directory(private) == private
    with pytest.raises(UnsupportedError, match="--lock-dir, FP4TUNE_LOCK_DIR.: no directory"):
        lock_directory(tmp_path / "missing")


def test_a_file_system_without_locks(monkeypatch, tmp_path):
    def flock(fd, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(device_lock.fcntl, "flock", flock)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(UnsupportedError, match="No locks available.*set FP4TUNE_LOCK_DIR"):
        lock(tmp_path).acquire()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


NOBODY = 65534


@contextlib.contextmanager
def as_nobody(act):
    """Call `act(tell)` in a child that has become a user without any rights; gives the pipe that it tells and its pid.

    Forked, because that user may not be able to read this interpreter. Only root can become somebody else.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    told, telling = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.umask(0o077)
            act(lambda text: os.write(telling, text.encode() + b"\n"))
        finally:
            os._exit(0)
    os.close(telling)
    try:
        with os.fdopen(told) as pipe:
            yield pipe, pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.fixture
def shared():
    """A directory such as /tmp: everybody may write, nobody may remove another's file."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        path = Path(name)
        path.chmod(0o1777)
        yield path


def test_two_users_share_a_lock(shared):
    go, going = os.pipe()

    def hold(tell):
        theirs = lock(shared, command="fp4tune tune")
        theirs.acquire()
        tell("held")
        os.read(go, 1)
        theirs.release()
        tell("released")

    with as_nobody(hold) as (pipe, pid):
        assert pipe.readline() == "held\n"
        mine = lock(shared)
        assert (mine.holder().pid, mine.path.stat().st_uid) == (pid, NOBODY)
        with pytest.raises(BusyError, match=f"pid {pid}, user "):
            mine.acquire()
        os.write(going, b"x")
        assert pipe.readline() == "released\n"
        mine.acquire()
        assert mine.path.stat().st_uid == NOBODY, "the file is still the one that the other user made"
        mine.release()


def test_a_directory_that_cannot_be_written():
    def fail(tell):
        try:
            lock(Path("/usr")).acquire()
        except UnsupportedError as error:
            tell(str(error))

    with as_nobody(fail) as (pipe, _):
        said = pipe.readline()
    assert said.startswith("The lock file /usr/fp4tune-")
    assert "cannot be used: Permission denied. Remove it, or set FP4TUNE_LOCK_DIR" in said


def test_devices_without_a_uuid_share_a_lock_by_ordinal(tmp_path):
    first = DeviceLock(H200, command="x", directory=tmp_path, uuid="")
    assert first.path.name == "fp4tune-ordinal-0.lock"
