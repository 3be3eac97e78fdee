"""Programs of coordinate descent, by rows and by columns."""
