"""Tests of mpsched.testing."""
