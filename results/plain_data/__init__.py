"""Plain data of records: what is checked at the door, and parts that many records share."""
