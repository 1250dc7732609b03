"""Download official archives over HTTP: resume what broke off, check the checksum, then give the file its name.

pooch is not used: it restarts an interrupted download from zero, lets two processes download the same file,
replaces a file of the user's that has the archive's name, and needs requests.
"""

import difflib
import errno
import hashlib
import http.client
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from ibinn._system import lock
from ibinn._types import Progress

RETRIES = 3  # further attempts after a connection broke off or timed out
CHUNK = 1 << 16  # bytes read at once


class FetchError(ValueError):
    """A download failed. The message is one sentence: what, where, and what to do."""


@dataclass(frozen=True)
class Archive:
    """An official file; checksum is "md5:<hex>", "sha256:<hex>" or similar."""

    url: str
    checksum: str
    n_bytes: int | None = None

    @property
    def file_name(self) -> str:
        return self.url.rpartition("/")[2]


def md5_archives(base: str, files: dict[str, tuple[str, int]]) -> tuple[Archive, ...]:
    """Archives below one address; files maps a name to (MD5, bytes)."""
    return tuple(Archive(base + file, f"md5:{md5}", size) for file, (md5, size) in files.items())


# CIFAR and Fashion-MNIST: the checksums that the publishers give on their pages. The publishers of MNIST
# give the sizes only; its checksums are those of torchvision, whose mirror this is. All are MD5: enough
# against damage, and nobody is known to be able to make other bytes for a given MD5.
ARCHIVES = {
    "cifar10": md5_archives(
        "https://www.cs.toronto.edu/~kriz/",
        {"cifar-10-python.tar.gz": ("c58f30108f718f92721af3b95e74349a", 170498071)},
    ),
    "cifar100": md5_archives(
        "https://www.cs.toronto.edu/~kriz/",
        {"cifar-100-python.tar.gz": ("eb9058c3a382ffc7106e4002c42a8d85", 169001437)},
    ),
    "mnist": md5_archives(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        {
            "train-images-idx3-ubyte.gz": ("f68b3c2dcbeaaa9fbdd348bbdeb94873", 9912422),
            "train-labels-idx1-ubyte.gz": ("d53e105ee54ea40749a09fcbcd1e9432", 28881),
            "t10k-images-idx3-ubyte.gz": ("9fb629c4189551a2d022fa330f9573f3", 1648877),
            "t10k-labels-idx1-ubyte.gz": ("ec29112dd5afa0611ce80d1b7f02629c", 4542),
        },
    ),
    "fashion_mnist": md5_archives(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        {
            "train-images-idx3-ubyte.gz": ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26421880),
            "train-labels-idx1-ubyte.gz": ("25c81989df183df01b3e8a0aad5dffbe", 29515),
            "t10k-images-idx3-ubyte.gz": ("bef4ecab320f06d8554ea6380940ec79", 4422102),
            "t10k-labels-idx1-ubyte.gz": ("bb300cfdad3c16e7a12a480ee83cd310", 5148),
        },
    ),
}


def fetch_set(name: str, folder: Path, progress: Progress | None = None) -> list[Path]:
    """Download the archives of a known set into folder/name, unless they are there; their paths.

    Each set has its own folder because MNIST and Fashion-MNIST give their files the same names. progress gets
    the bytes of the current file.
    """
    if name not in ARCHIVES:
        near = difflib.get_close_matches(name.lower(), ARCHIVES, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise FetchError(
            f"there is no official archive for {name!r}; {hint}the sets that can be fetched are "
            + ", ".join(ARCHIVES)
        )
    return [fetch(archive, folder / name, progress) for archive in ARCHIVES[name]]


def fetch(
    archive: Archive,
    folder: Path,
    progress: Progress | None = None,
    timeout: float = 30.0,
    pause: float = 1.0,
) -> Path:
    """Download an archive into a folder, unless a file with its checksum is there; its path.

    Bytes go to `<file_name>.part`, which later calls continue. The file gets its final name in one step, after
    length and checksum are checked. After `timeout` seconds without data, or a broken connection, it retries
    RETRIES times, `pause` seconds apart. FetchError for every failure.
    """
    job = Job(archive, folder, progress or (lambda done, total: None), timeout, pause)
    if not is_web(archive.url):
        raise FetchError(
            f"{archive.url!r} is not a web address; use one that begins with http:// or https://"
        )
    with disk_errors(job):
        if not is_complete(job):
            folder.mkdir(parents=True, exist_ok=True)
            with locked_part(job):
                if not is_complete(job):  # another process may have finished it meanwhile
                    if not matches(archive, job.part):
                        download(job)
                    settle(job)
    return job.target


@dataclass(frozen=True)
class Job:
    """The download of one archive into a folder."""

    archive: Archive
    folder: Path
    progress: Progress
    timeout: float
    pause: float

    @property
    def target(self) -> Path:
        return self.folder / self.archive.file_name

    @property
    def part(self) -> Path:
        return self.folder / f"{self.archive.file_name}.part"

    @property
    def by_hand(self) -> str:
        return f"download {self.archive.url} by hand into {self.folder}"


class Interrupted(Exception):
    """The connection broke off or timed out. The .part file has what was received; a retry may help."""


class WebRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to http and https only."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if not is_web(newurl):
            raise urllib.error.HTTPError(req.full_url, code, f"{msg}, to {newurl}", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def is_web(url: str) -> bool:
    return url.lower().startswith(("http://", "https://"))


@contextmanager
def disk_errors(job: Job) -> Iterator[None]:
    """Turn errors of the file system into FetchError; those of the network are handled where they arise."""
    try:
        yield
    except OSError as error:
        why, advice = reason_text(error), "choose another folder or change its permissions"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            why, advice = "the disk is full", "free some space there and run the command again to resume"
        raise FetchError(
            f"cannot store {job.archive.file_name} in {job.folder}: {why}; {advice}"
        ) from error


@contextmanager
def locked_part(job: Job) -> Iterator[None]:
    """Lock the .part file, so that two processes do not mix their bytes in it; remove it if it stays empty."""
    with open(job.part, "ab") as file:
        try:
            is_ours = lock(file)
        except (ImportError, OSError):  # Windows and some network file systems: continue without a lock
            is_ours = True
            file.close()  # Windows does not rename open files
        if not is_ours:
            raise FetchError(
                f"another process is downloading into {job.folder}; wait for it and run the command again"
            )
        try:
            yield
        finally:
            if job.part.exists() and not job.part.stat().st_size:
                job.part.unlink()


def is_complete(job: Job) -> bool:
    """Whether the file is there. Another file with its name belongs to the user and is not overwritten."""
    if not job.target.exists():
        return False
    if not matches(job.archive, job.target):
        raise FetchError(
            f"{job.target} exists but is not the official file, whose checksum is {job.archive.checksum}; "
            f"move it away and run the command again"
        )
    return True


def matches(archive: Archive, path: Path) -> bool:
    """Whether path holds exactly the archive: its length, if known, and its checksum."""
    if not path.exists() or archive.n_bytes not in (None, path.stat().st_size):
        return False
    algorithm, _, expected = archive.checksum.partition(":")
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False))
    return digest.hexdigest() == expected


def settle(job: Job) -> None:
    """Give a complete .part file its final name, or delete it and raise FetchError if its bytes are wrong."""
    if not matches(job.archive, job.part):
        job.part.unlink()
        raise FetchError(
            f"{job.archive.url} sent bytes whose checksum is not {job.archive.checksum}, so they were deleted; "
            f"run the command again, or find the official {job.archive.file_name} and put it into {job.folder}"
        )
    with open(job.part, "rb+") as file:
        os.fsync(file.fileno())
    os.replace(job.part, job.target)


def download(job: Job) -> None:
    """Fill the .part file, with retries."""
    for retries_left in reversed(range(RETRIES + 1)):
        try:
            return append(job)
        except Interrupted as error:
            if not retries_left:
                raise FetchError(
                    f"{job.archive.url} broke off {RETRIES + 1} times, the last time because {error}; "
                    f"run the command again to resume, or {job.by_hand}"
                ) from error
            time.sleep(job.pause)
    return None


def append(job: Job) -> None:
    """Add the rest to the .part file, or start it again if the server does not resume."""
    size = job.part.stat().st_size if job.part.exists() else 0
    body = request(job, size if job.archive.n_bytes is None or size < job.archive.n_bytes else 0)
    done = body.start
    job.progress(done, body.total)
    with body.response, open(job.part, "ab" if done else "wb") as file:
        while chunk := read_chunk(job, body.response):
            file.write(chunk)
            done += len(chunk)
            job.progress(done, body.total)
            if body.total is not None and done > body.total:
                break  # not the official file, and it may never end
    if body.total is not None and done < body.total:
        raise Interrupted(f"the connection closed after {done} of {body.total} bytes")


class Body(NamedTuple):
    """An open response, the place of its first byte in the file, and the length of the whole file."""

    response: http.client.HTTPResponse
    start: int
    total: int | None


def request(job: Job, start: int) -> Body:
    """Request the bytes from start on; the server may send the file from 0 all the same."""
    url, expected = job.archive.url, job.archive.n_bytes
    try:
        response = send(job, start)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and start:
            return request(job, 0)
        raise FetchError(
            f"{url} answers {error.code} {reason_text(error.reason)}; try again later, or find the official "
            f"{job.archive.file_name} and put it into {job.folder}"
        ) from error
    first, total = content_range(response)
    if first not in (0, start):
        response.close()
        if start:
            return request(job, 0)
        raise FetchError(
            f"{url} sends a part of the file in reply to a request for all of it; {job.by_hand}"
        )
    if None not in (total, expected) and total != expected:
        response.close()
        raise FetchError(
            f"{url} offers {total} bytes but the official file has {expected}; a proxy or a login page may have "
            f"answered in its place; {job.by_hand}"
        )
    return Body(response, first, expected or total)


def send(job: Job, start: int) -> http.client.HTTPResponse:
    """Send one request and return the response; an HTTPError is left to the caller."""
    headers = {"User-Agent": "ibinn", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    opener = urllib.request.build_opener(WebRedirects)
    try:
        response: http.client.HTTPResponse = opener.open(
            urllib.request.Request(job.archive.url, headers=headers), timeout=job.timeout
        )
    except urllib.error.HTTPError:
        raise
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            raise interrupted(job, error.reason) from error
        raise FetchError(
            f"cannot reach {job.archive.url}: {reason_text(error.reason)}; check the network connection and run "
            f"the command again, or {job.by_hand}"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise interrupted(job, error) from error
    return response


def content_range(response: http.client.HTTPResponse) -> tuple[int | None, int | None]:
    """Place of the first byte in the file, None if the server does not give it, and the file's length if known."""
    if response.status != 206:
        length = response.headers.get("Content-Length", "")
        return 0, int(length) if length.isdecimal() else None
    found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
    if found is None:
        return None, None
    return int(found[1]), None if found[2] == "*" else int(found[2])


def read_chunk(job: Job, response: http.client.HTTPResponse) -> bytes:
    """The next bytes as soon as some arrive; empty at the end."""
    try:
        return response.read1(CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise interrupted(job, error) from error


def interrupted(job: Job, error: Exception) -> Interrupted:
    if isinstance(error, TimeoutError):
        return Interrupted(f"no data came for {job.timeout:g} s")
    return Interrupted(f"the connection failed ({reason_text(error)})")


def reason_text(error: object) -> str:
    """The system's message on one line, or the name of the error."""
    return " ".join(str(getattr(error, "strerror", None) or error or type(error).__name__).split())
