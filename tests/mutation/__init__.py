"""Whether the tests notice small changes of the code (``make mutation``)."""
