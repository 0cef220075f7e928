"""From settings to a database, without a server."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gateway.tenancy.database import Directory
from gateway.tenancy.schema import DirectoryError
from gateway.tenancy.storage import storage_of

CANARY = "CANARY"


def test_the_default_is_a_file_in_the_home_directory() -> None:
    place = storage_of(Path("/srv"), "sqlite", None, None)
    assert (str(place), place.pepper) == ("/srv/turnout.db", Path("/srv/pepper"))
    assert storage_of(Path("/srv"), "sqlite", None, Path("/p")).pepper == Path("/p")


def test_a_server_is_named_without_its_password(tmp_path: Path) -> None:
    """Case Q-KEY-IN-LOGS."""
    password_file = tmp_path / "password"
    password_file.write_text(f"{CANARY}\n")
    for url, file in (
        (f"postgresql://me:{CANARY}@db.example/x?sslmode=require", None),
        ("postgresql://me@db.example/x?sslmode=require", password_file),
    ):
        place = storage_of(tmp_path, url, file, None)
        assert str(place) == "PostgreSQL database 'x' on db.example port 5432"
        assert CANARY not in repr(place)
        assert place.url.password == CANARY
        assert place.url.query == {"ssl": "require"}


@pytest.mark.parametrize(
    ("database", "message"),
    [
        ("", "is neither 'sqlite' nor a URL"),
        (f"{CANARY}", "is neither 'sqlite' nor a URL"),
        (f"mysql://u:{CANARY}@h/d", "is neither 'sqlite' nor a URL"),
        (f"postgresql://u:{CANARY}@h:port/d", "is neither 'sqlite' nor a URL"),
        (f"postgresql+psycopg://u:{CANARY}@h/d", "is neither 'sqlite' nor a URL"),
        (f"postgresql://u:{CANARY}@h/d?sslcert=x", "parameter 'sslcert', which is not read"),
    ],
)
def test_what_is_no_database_is_refused_without_showing_it(database: str, message: str) -> None:
    """Case Q-KEY-IN-LOGS: a mistyped URL can hold a password."""
    with pytest.raises(DirectoryError, match=message) as caught:
        storage_of(Path("/srv"), database, None, None)
    assert CANARY not in str(caught.value)


def test_a_password_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DirectoryError, match=r"TURNOUT_DATABASE_PASSWORD_FILE: cannot read .*/no"):
        storage_of(tmp_path, "postgresql://u@h/d", tmp_path / "no", None)


async def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    url = f"postgresql://u:{CANARY}@/d?host={tmp_path}"
    with pytest.raises(DirectoryError, match="cannot open PostgreSQL database 'd' on ") as caught:
        await Directory.open(tmp_path, database=url)
    assert CANARY not in str(caught.value)


async def test_a_driver_that_is_not_installed_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(DirectoryError, match=r"pip install 'turnout\[postgres\]'"):
        await Directory.open(tmp_path, database="postgresql://u@h/d")


async def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "turnout.db").write_text("This is a text, and no database at all." * 99)
    with pytest.raises(DirectoryError, match=r"cannot open .*turnout\.db: file is not a database"):
        await Directory.open(tmp_path)


async def test_a_pepper_that_is_too_short_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pepper").write_bytes(b"short")
    with pytest.raises(DirectoryError, match="has 5 bytes, it needs 32 random ones"):
        await Directory.open(tmp_path)
