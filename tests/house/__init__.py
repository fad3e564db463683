"""Tests of the house: layers, names, sizes, documents, examples."""

from __future__ import annotations
