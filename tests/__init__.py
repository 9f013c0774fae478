"""Tests in the same folders as the code they test; what several of them share is imported from here."""
