"""The process above one rank: it starts it, waits for it and writes down how it ended.

Sent to nodes and run there by their own Python (3.6 and newer, standard library), one per rank for weeks, so it
imports as little as it can: numbers are the only thing that it puts into JSON.

    keeper.py RUN LOCK_FD ACK_FD ROTATE_BYTES PIECES INTERVAL PROGRAM [ARGUMENT...]

RUN is the folder of this start. The agent has put `start.json` (the record without what only the keeper knows)
and `env` (NAME=VALUE, NUL-terminated: added to the environment) there. LOCK_FD is the rank's lock, held until the
record is written, so that a second starter sees either the lock or the record even when the agent dies. Through
ACK_FD goes `ok`, or `error ERRNO TEXT`.

The rank writes straight to the log, never through this process: with a pipe it would die with its keeper.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs, no-check-untyped-defs
# mypy: disable-error-code=var-annotated

import ctypes
import os
import sys
import time

PAGE = 4096
PIECE = 1 << 20
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
ENOENT, ENOSPC = 2, 28
PUNCH_HOLE_KEEP_SIZE = 3


def start_time(pid):
    """Return the start of a process in clock ticks since boot (proc(5), stat field 22)."""
    with open("/proc/%d/stat" % pid, "rb") as file:
        return int(file.read().rsplit(b")", 1)[1].split()[19])


def write_atomically(path, data):
    """Write a file so that readers see all of it or none."""
    fd = os.open(path + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(path + ".tmp", path)


def fill_in(path, text):
    """Overwrite a file that was made large enough at the start: works on a full disk."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.pwrite(fd, text.encode().ljust(255) + b"\n", 0)
    finally:
        os.close(fd)


def become_rank(run, gate, log, program):
    """In the child: wait for the record, then turn into the rank. Does not return."""
    try:
        os.setsid()
        if os.read(gate, 1) != b"g":
            os._exit(1)
        import signal  # only here: what the child imports goes away with exec

        for name in ("SIGPIPE", "SIGXFSZ", "SIGHUP", "SIGINT", "SIGTERM", "SIGQUIT"):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        environ = dict(os.environb)
        with open(run + "/env", "rb") as file:
            for entry in file.read().split(b"\0")[:-1]:
                name, _, value = entry.partition(b"=")
                environ[name] = value
        login = os.open(run + "/login.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(login, 1)
        os.dup2(login, 2)
        os.dup2(log, 3)
        os.set_inheritable(3, True)  # dup2 changes nothing when the log is descriptor 3 already
        try:
            os.chdir(environ.get(b"HOME", b"/"))
        except OSError:
            os.chdir("/")
        try:
            os.execvpe(program[0], program, environ)
        except OSError as error:
            os.write(3, ("pdtui: cannot start %s: %s\n" % (program[0], error.strerror)).encode())
    finally:
        os._exit(127)


def launch(run, program):
    """Fork the rank, record it, let it go and wait for its exec. Returns its pid and the log's descriptor."""
    log = os.open(run + "/log", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    for name in ("exit.json", "stop.json", "rotation"):
        fill_in(run + "/" + name, "")
    gate, opener = os.pipe()
    ear, mouth = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(opener)
        become_rank(run, gate, log, program)
    os.close(gate)
    os.close(mouth)
    me = os.getpid()
    try:
        with open(run + "/start.json", "rb") as file:
            known = file.read().rstrip().rstrip(b"}")
        found = ', "pid": %d, "start": %d, "keeper": %d, "keeper_start": %d, "started": %.3f}\n'
        numbers = found % (pid, start_time(pid), me, start_time(me), time.time())
        write_atomically(run + "/record.json", known + numbers.encode())
        os.write(opener, b"g")
    finally:
        os.close(opener)  # without a record the rank reads end of file and ends
    os.read(ear, 1)  # end of file: exec has closed the other end, and the rank carries its variable
    os.close(ear)
    return pid, log


def rotate(run, log, begin, end):
    """Copy the log from `begin` to `end` away and free its blocks; offsets stay valid. Raises OSError."""
    path = "%s/log.%020d" % (run, begin)
    try:
        with open(path + ".tmp", "wb", 0) as copy:
            at = begin
            while at < end:
                data = os.pread(log, min(PIECE, end - at), at)
                if not data:
                    break
                view = memoryview(data)
                while view:
                    view = view[copy.write(view) :]
                at += len(data)
        os.rename(path + ".tmp", path)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.fallocate(log, PUNCH_HOLE_KEEP_SIZE, ctypes.c_long(begin), ctypes.c_long(end - begin)):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    except OSError:
        for leftover in (path + ".tmp", path):
            remove(leftover)
        raise


def remove(path):
    """Remove a file if that is possible."""
    try:
        os.unlink(path)
    except OSError:
        pass


def keep_newest(run, pieces):
    """Remove all but the newest pieces of the log."""
    try:
        names = os.listdir(run)
    except OSError:
        return
    old = sorted(name for name in names if name.startswith("log.") and name[4:].isdigit())
    for name in old[: max(0, len(old) - pieces)]:
        remove(run + "/" + name)


def note(run, text):
    """Say why the log is not rotated; the file was made large enough at the start."""
    try:
        fill_in(run + "/rotation", text)
    except OSError:
        pass


def watch_size(run, log, limit, pieces, interval):
    """Rotate whenever the log holds more than `limit` bytes; ends where the file system refuses."""
    begin, noted = 0, False
    while True:
        time.sleep(interval)
        size = os.fstat(log).st_size
        if size < begin:  # somebody has emptied it: offsets begin anew, and the pieces are of other ones
            keep_newest(run, 0)
            begin = 0
        if size - begin <= limit:
            continue
        end = (size - limit // 4) // PAGE * PAGE
        try:
            rotate(run, log, begin, end)
        except OSError as error:
            note(run, "refused: %s" % error.strerror)
            noted = True
            if error.errno != ENOSPC:  # a full disk may have room later; anything else stays as it is
                return
            continue
        begin = end
        keep_newest(run, pieces)
        if noted:
            note(run, "")
            noted = False


def words_of(status, ended):
    """Return an end as the start of its JSON and as a name of 15 bytes: X or S, the number, the time."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return '{"status": null, "signal": %d, "ended": %.3f' % (number, ended), "S%d %d" % (number, ended)
    number = os.WEXITSTATUS(status)
    return '{"status": %d, "signal": null, "ended": %.3f' % (number, ended), "X%d %d" % (number, ended)


def write_end(run, text):
    """Write how the rank ended; says whether there is nothing more to do."""
    try:
        fill_in(run + "/exit.json", text)
    except OSError as error:
        return error.errno == ENOENT  # the folder is gone, and with it who would read it
    return True


def wait_for_all(run, main, interval):
    """Reap every descendant (orphans come here: subreaper) and record the rank's own end.

    Where the disk does not take it, this process's name tells it (proc(5), comm) until the disk does.
    """
    text = ""
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            break
        if pid == main:
            text, name = words_of(status, time.time())
            ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode(), 0, 0, 0)
            write_end(run, text + "}")
    while not write_end(run, text + ', "empty": true}'):  # and nothing of this run is left
        time.sleep(interval)


def answer(ack, words):
    """Tell the agent; one that was killed meanwhile must not take the keeper with it."""
    try:
        os.write(ack, words.encode())
    except OSError:
        pass
    os.close(ack)


def main(argv):
    """Detach, start the rank, stay until its last descendant is gone."""
    run, lock, ack, limit, pieces = argv[0], int(argv[1]), int(argv[2]), int(argv[3]), int(argv[4])
    interval, program = float(argv[5]), argv[6:]
    if os.fork():
        os._exit(0)
    os.setsid()
    for fd in (lock, ack):
        os.set_inheritable(fd, False)
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        os.chdir("/")
        pid, log = launch(run, program)
    except OSError as error:
        answer(ack, "error %d %s" % (error.errno or 5, error.strerror))
        os._exit(1)
    answer(ack, "ok")
    os.close(lock)
    import _thread

    _thread.start_new_thread(watch_size, (run, log, limit, pieces, interval))
    wait_for_all(run, pid, interval)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
