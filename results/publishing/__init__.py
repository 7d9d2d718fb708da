"""Publishing: claims judged by records, the report, tables of documents."""
