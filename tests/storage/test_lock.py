"""One builder per directory, whoever dies and whoever races."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.failing_disk import FailingDisk

from aggtree.storage import atomic
from aggtree.storage.errors import BuildLockedError, DiskError
from aggtree.storage.sealed_json import read_sealed, write_sealed
from aggtree.storage.work import lock
from aggtree.storage.work.lock import BuildLock, Owner

HOLD = """
import sys, time
from aggtree.storage.work.lock import BuildLock
with BuildLock(sys.argv[1]):
    print("held", flush=True)
    time.sleep(3600)
"""

RACE = """
import sys
from pathlib import Path
from aggtree.storage.errors import BuildLockedError
from aggtree.storage.work.lock import BuildLock
index, won = Path(sys.argv[1]), 0
for _ in range(100):
    try:
        with BuildLock(index):
            (index / "inside").touch(exist_ok=False)
            (index / "inside").unlink()
            won += 1
    except BuildLockedError:
        pass
print(won)
"""


def start(code, index):
    return subprocess.Popen([sys.executable, "-c", code, str(index)], stdout=subprocess.PIPE, text=True)


def test_the_second_builder_is_told_the_first(tmp_path):
    with BuildLock(tmp_path / "i"):
        expected = f"process {os.getpid()} on .* is building here; wait for it"
        with pytest.raises(BuildLockedError, match=expected) as error, BuildLock(tmp_path / "i"):
            pass
        assert "\n" not in str(error.value)
        assert read_sealed(tmp_path / "i" / "lock")["pid"] == os.getpid()
    assert list((tmp_path / "i").iterdir()) == []
    with BuildLock(tmp_path / "i"):
        pass


def test_it_is_given_back_after_an_error(tmp_path):
    with pytest.raises(KeyboardInterrupt), BuildLock(tmp_path):
        raise KeyboardInterrupt
    with BuildLock(tmp_path):
        pass


def test_a_killed_owner_is_taken_over(tmp_path):
    owner = start(HOLD, tmp_path)
    assert owner.stdout.readline() == "held\n"
    with pytest.raises(BuildLockedError, match=f"process {owner.pid} on"), BuildLock(tmp_path):
        pass
    owner.send_signal(signal.SIGKILL)
    # Not reaped yet: its number is still taken, but the kernel has given the lock back.
    os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)
    assert (tmp_path / "lock").exists()
    with BuildLock(tmp_path):
        assert read_sealed(tmp_path / "lock")["pid"] == os.getpid()
    owner.wait()
    owner.stdout.close()


def test_only_one_of_racing_builders_is_inside(tmp_path):
    builders = [start(RACE, tmp_path) for _ in range(3)]
    won = [int(builder.communicate()[0]) for builder in builders]
    assert all(builder.returncode == 0 for builder in builders)
    assert sum(won) > 0
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_no_lock_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic, "disk", FailingDisk(0))
    with pytest.raises(DiskError, match="lock: no space left"), BuildLock(tmp_path):
        pass
    monkeypatch.setattr(atomic, "disk", FailingDisk())
    with (
        BuildLock(tmp_path),
        pytest.raises(BuildLockedError, match=f"process {os.getpid()}"),
        BuildLock(tmp_path),
    ):
        pass


def test_an_owner_on_another_host_is_believed(tmp_path):
    other = Owner(pid=1, host="elsewhere", boot="another", start="5")
    write_sealed(tmp_path / "lock", lock.asdict(other))
    with (
        pytest.raises(BuildLockedError, match=f"process 1 on elsewhere .*remove {tmp_path / 'lock'}"),
        BuildLock(tmp_path),
    ):
        pass
    assert (tmp_path / "lock").exists()


def test_a_container_of_this_machine_is_no_other_host(tmp_path):
    gone = Owner(pid=1, host="elsewhere", boot=lock._boot(), start="5")
    write_sealed(tmp_path / "lock", lock.asdict(gone))
    with BuildLock(tmp_path):
        pass


def another(**changes):
    """This process as another one would be recorded that ended long ago."""
    return lock.asdict(Owner.this_process()) | {"pid": 2**22 + 1, "start": "5"} | changes


def is_refused(path):
    with pytest.raises(BuildLockedError, match=f"remove {path / 'lock'}"), BuildLock(path):
        pass
    return (path / "lock").exists()


def test_another_machine_with_this_host_name_is_believed(tmp_path):
    write_sealed(tmp_path / "lock", another(boot="another", machine="another"))
    assert is_refused(tmp_path)


def test_a_container_elsewhere_with_this_host_name_is_believed(tmp_path, monkeypatch):
    """Its image may have given it the machine's id of this container."""
    monkeypatch.setattr(lock, "_namespace", lambda: "pid:[4026532001]")
    assert Owner.this_process().machine == ""
    write_sealed(tmp_path / "lock", another(boot="another", namespace="pid:[4026532001]"))
    assert is_refused(tmp_path)


def test_a_machine_that_was_booted_again_is_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "_machine", lambda: "0123")
    write_sealed(tmp_path / "lock", another(boot="the last one", start="5"))
    with BuildLock(tmp_path):
        assert read_sealed(tmp_path / "lock")["machine"] == "0123"


@pytest.mark.parametrize(("boot", "taken"), [("the last one", False), (None, True)])
def test_a_lock_of_an_older_release_is_read(tmp_path, boot, taken):
    old = another()
    del old["machine"], old["namespace"]
    write_sealed(tmp_path / "lock", old | ({"boot": boot} if boot else {}))
    if not taken:
        assert is_refused(tmp_path)
        return
    with BuildLock(tmp_path):
        pass


@pytest.mark.parametrize("content", [b"", b"half a rec", b'{"pid": 1}', bytes(5000)])
def test_a_lock_without_a_name_is_taken_over(tmp_path, content):
    (tmp_path / "lock").write_bytes(content)
    with BuildLock(tmp_path):
        pass


class TestWithoutLocksOfTheSystem:
    """File systems that cannot lock: the recorded owner decides."""

    @pytest.fixture(autouse=True)
    def unsupported(self, monkeypatch):
        def refuse(*_):
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr(fcntl, "flock", refuse)

    def test_a_living_owner_is_believed(self, tmp_path):
        with BuildLock(tmp_path), pytest.raises(BuildLockedError), BuildLock(tmp_path):
            pass

    def test_a_dead_owner_is_taken_over(self, tmp_path):
        ended = subprocess.Popen([sys.executable, "-c", ""])
        ended.wait()
        gone = lock.asdict(Owner.this_process()) | {"pid": ended.pid}
        write_sealed(tmp_path / "lock", gone)
        with BuildLock(tmp_path):
            pass

    def test_a_process_that_cannot_be_seen_from_here_is_believed(self, tmp_path):
        write_sealed(tmp_path / "lock", another(namespace="pid:[4026532001]"))
        assert is_refused(tmp_path)

    def test_a_process_that_got_the_number_later_is_another(self, tmp_path):
        write_sealed(tmp_path / "lock", lock.asdict(Owner.this_process()) | {"start": "1"})
        with BuildLock(tmp_path):
            pass


def test_a_system_without_proc_has_no_start(monkeypatch):
    def missing(*_, **__):
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    monkeypatch.setattr(Path, "readlink", missing)
    owner = Owner.this_process()
    assert (owner.boot, owner.start, owner.machine, owner.namespace) == ("", "", "", "")
    assert owner.is_near() and not owner.is_gone()
