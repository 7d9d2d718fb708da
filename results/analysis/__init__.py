"""Analysis of records: selection, labels, confidence, breakdowns, fronts, published figures."""
