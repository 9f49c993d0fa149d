"""Fixtures of the viewer's tests: a small campaign folder, and its tables."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from eagle3_assets.campaign import Campaign
from eagle3_assets.exact.sample_row import SampleRow
from eagle3_assets.store import Store
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.view.calls import Calls
from eagle3_assets.view.catalogue import Catalogue, open_catalogue
from eagle3_assets.view.library import Library
from eagle3_assets.view.roots import Root, roots_of
from eagle3_assets.view.texts import fill_texts
from eagle3_assets_tests.view.small_root import make_root


@pytest.fixture
def rows(campaign: Campaign, store: Store, mini: Profile) -> list[SampleRow]:
    return make_root(campaign, store, mini)


@pytest.fixture
def catalogue(rows: list[SampleRow], campaign: Campaign, store: Store) -> Catalogue:
    """With journals and texts read."""
    found = open_catalogue(Root(campaign.name, store, campaign))
    Calls(found).fill(threading.Event())
    fill_texts(found, threading.Event())
    return found


@pytest.fixture
def library(rows: list[SampleRow], campaign: Campaign) -> Iterator[Library]:
    found = Library(roots_of(campaign))
    found.reader().wait()
    yield found
    found.close()
