from __future__ import annotations

import os
import resource
import signal
import threading
import time
from collections.abc import Iterator

import pytest
import worker_faults
from fp4tune.tuner.workers import process, wire
from fp4tune.tuner.workers.process import FailedInsideError, WorkerDiedError, WorkerProcess, WorkerTimeoutError
from fp4tune.tuner.workers.spec import own_sys_path

TOY = "worker_faults:Toy"


@pytest.fixture
def worker() -> Iterator[WorkerProcess]:
    made = toy()
    yield made
    made.kill()


def toy(**arguments) -> WorkerProcess:
    made = WorkerProcess("The worker toy", **arguments)
    made.start(TOY, ["anna"], sys_path=own_sys_path(), deadline_s=60)
    return made


def test_answers_and_says_what_it_was_made_of(worker: WorkerProcess):
    assert worker.request("add", 2, 3, deadline_s=10) == 5
    assert worker.request("name", deadline_s=10) == "anna"
    assert worker.request("pid", deadline_s=10) == worker.pid != os.getpid()
    assert os.getpgid(worker.pid) == os.getsid(worker.pid) == worker.pid, "its own group: no Ctrl-C of the terminal"


def test_several_requests_may_be_under_way(worker: WorkerProcess):
    numbers = [worker.send("add", 1, i) for i in range(5)]
    soon = time.monotonic() + 10
    assert [worker.receive(n, "add", deadline=soon, allowed_s=10) for n in numbers] == [1, 2, 3, 4, 5]


def test_a_request_that_takes_too_long_is_a_timeout_and_the_worker_can_be_killed(worker: WorkerProcess):
    with pytest.raises(WorkerTimeoutError, match=r"The worker toy did not answer to spin within 0\.2 s"):
        worker.request("spin", deadline_s=0.2)
    assert worker.alive
    worker.kill()
    worker.kill()
    assert not worker.alive
    assert worker_faults.gone_within([worker.pid], 5)


def test_an_answer_that_is_there_counts_however_late_it_is_fetched(worker: WorkerProcess):
    """As after Ctrl-Z, or after a minute of waiting for a compiler."""
    number = worker.send("flood", 3)  # what it prints is no answer
    time.sleep(1)
    assert worker.receive(number, "flood", deadline=time.monotonic() - 60, allowed_s=0.1) == "done"
    number = worker.send("sleep", 60)
    with pytest.raises(WorkerTimeoutError):
        worker.receive(number, "sleep", deadline=time.monotonic() - 60, allowed_s=0.1)


def test_an_answer_that_nobody_waits_for_any_more_is_not_taken_for_another(worker: WorkerProcess):
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        worker.request("sleep", 0.5, deadline_s=10, watch=interrupt)
    assert worker.request("add", 2, 3, deadline_s=10) == 5


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_a_worker_that_is_killed_died_and_the_signal_is_named(worker: WorkerProcess, number: signal.Signals):
    with pytest.raises(WorkerDiedError, match=f"The worker toy was killed by {number.name}.* during kill") as caught:
        worker.request("kill", number.value, deadline_s=30)
    assert ("out of memory?" in str(caught.value)) == (number is signal.SIGKILL)
    with pytest.raises(WorkerDiedError):
        worker.request("add", 1, 1, deadline_s=5)


def test_a_worker_that_exits_died_and_its_last_line_is_quoted(worker: WorkerProcess):
    with pytest.raises(WorkerDiedError, match=r"ended with exit code 3 during exit\. Its last line: bad\\?_alloc"):
        worker.request("exit", 3, "bad_alloc", deadline_s=30)


def test_what_is_raised_inside_is_named_and_the_worker_goes_on(worker: WorkerProcess):
    with pytest.raises(FailedInsideError, match="ValueError: that is no number") as caught:
        worker.request("fail", False, deadline_s=10)
    assert (caught.value.type_name, caught.value.text, caught.value.sticky) == ("ValueError", "that is no number", "")
    with pytest.raises(FailedInsideError) as caught:
        worker.request("fail", True, deadline_s=10)
    assert caught.value.sticky == "illegal memory access"
    with pytest.raises(FailedInsideError, match="SystemExit: 3"):
        worker.request("sys_exit", deadline_s=10)
    with pytest.raises(FailedInsideError, match=r"The answer to unpicklable cannot be sent"):
        worker.request("unpicklable", deadline_s=10)
    for name in ("_name", "nothing"):
        with pytest.raises(FailedInsideError):
            worker.request(name, deadline_s=10)
    assert worker.request("add", 2, 3, deadline_s=10) == 5


def test_a_worker_that_floods_its_output_is_answered_and_its_log_stays_small(
    worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(process, "LOG_BYTES", 1 << 20)
    assert worker.request("flood", 64, deadline_s=60) == "done"
    assert worker.request("add", 2, 3, deadline_s=10) == 5  # looks at the log first
    assert os.fstat(worker._log.fileno()).st_size < 2 << 20
    assert worker.last_lines(1) == ["the end of the flood"]


def test_a_worker_that_closes_its_channel_died(worker: WorkerProcess):
    with pytest.raises(WorkerDiedError):
        worker.request("close_everything", deadline_s=30)


def test_garbage_on_the_channel_is_a_death(worker: WorkerProcess):
    worker._inbox._buffer += wire._HEADER.pack(1 << 60, 1)
    with pytest.raises(WorkerDiedError, match="garbage"):
        worker.request("add", 1, 1, deadline_s=10)


def test_kill_ends_what_the_worker_started_even_if_it_ignores_sigterm(worker: WorkerProcess):
    grandchild = worker.request("grandchild", deadline_s=10)
    assert worker_faults.exists(grandchild)
    with pytest.raises(WorkerTimeoutError):
        worker.request("stubborn", deadline_s=0.2)
    worker.kill()
    assert worker_faults.gone_within([worker.pid, grandchild], 5)


def test_what_a_worker_started_ends_with_it_if_it_died_by_itself(worker: WorkerProcess):
    grandchild = worker.request("grandchild", deadline_s=10)
    with pytest.raises(WorkerDiedError):
        worker.request("exit", 0, deadline_s=10)
    worker.kill()
    assert worker_faults.gone_within([grandchild], 5)


def test_stop_lets_a_worker_end_by_itself(worker: WorkerProcess):
    worker.stop(patience_s=20)
    assert worker._process.returncode == 0


def test_killed_from_another_thread_the_one_that_waits_is_told(worker: WorkerProcess):
    threading.Timer(0.3, worker.kill).start()
    with pytest.raises(WorkerDiedError):
        worker.request("sleep", 60, deadline_s=60)


def test_who_forgets_to_kill_a_worker_still_ends_it():
    forgotten = toy()
    pid, grandchild = forgotten.pid, forgotten.request("grandchild", deadline_s=10)
    del forgotten
    assert worker_faults.gone_within([pid, grandchild], 10)


def test_an_object_that_cannot_be_made_is_a_failure_inside():
    worker = WorkerProcess("The worker toy")
    try:
        with pytest.raises(FailedInsideError, match="ModuleNotFoundError"):
            worker.start("no_such_module:Toy", [], deadline_s=60)
        with pytest.raises(FailedInsideError, match="AttributeError"):
            worker.start("worker_faults:Nothing", [], sys_path=own_sys_path(), deadline_s=60)
        with pytest.raises(FailedInsideError, match="nothing that can add"):
            worker.request("add", 1, 1, deadline_s=10)
    finally:
        worker.kill()


def test_the_environment_and_what_is_imported_ahead():
    worker = toy(environment={"MAX_JOBS": "1"}, preload=["colorsys", "no_such_module"])
    try:
        assert worker.request("environment", "MAX_JOBS", deadline_s=10) == "1"
        assert worker.request("environment", "HOME", deadline_s=10) == os.environ.get("HOME")
        modules = worker.request("modules", deadline_s=10)
        assert "colorsys" in modules
        assert not {"torch", "triton", "optuna", "sqlalchemy"} & set(modules), "a worker starts light"
    finally:
        worker.kill()


def test_many_open_files_in_the_tuner_do_no_harm():
    """select() takes no descriptor above 1023."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] < 2048:
        pytest.skip("this user may not open so many")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 2048), limits[1]))
    opened = [os.open("/dev/null", os.O_RDONLY)]
    try:
        while opened[-1] < 1024:
            opened.append(os.open("/dev/null", os.O_RDONLY))
        worker = toy()
        assert worker._channel.fileno() > 1023
        assert worker.request("add", 2, 3, deadline_s=10) == 5
        worker.kill()
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
