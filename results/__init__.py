"""Results: records of finished trials, and the tables and pages made of them."""
