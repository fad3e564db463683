"""Tests of the command in one process."""
