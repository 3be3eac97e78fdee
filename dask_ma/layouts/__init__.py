"""Layouts of data over ranks other than the blocks of rows."""
