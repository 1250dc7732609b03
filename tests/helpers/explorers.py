"""Explorers for the tests, and clients that ask them."""

from starlette.testclient import TestClient

from ibinn.explorer import schema
from ibinn.explorer.server import make_app
from ibinn.explorer.service import Explorer, Inputs

HOME = "http://127.0.0.1:8765"


def explorer_of(run, part, folder):
    return Explorer(run, folder, Inputs(part, "test"))


def client(explorer):
    return TestClient(make_app(explorer), base_url=HOME)


def by_index(i):
    return schema.Input(index=i)
