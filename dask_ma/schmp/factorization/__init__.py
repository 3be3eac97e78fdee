"""Matrix factorization: users and items as vectors, whose products are ratings."""
