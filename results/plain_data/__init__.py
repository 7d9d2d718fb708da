"""Plain data of records: checks of foreign data, and parts that many records share."""
