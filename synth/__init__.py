"""What is asked: synthetic sequence tasks as data generators. numpy only; knows no model."""
