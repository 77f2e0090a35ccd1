"""Shared by all code that writes files and reads them again."""
