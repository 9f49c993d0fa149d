"""The target model's verdict on each row: evidence a token, the table, the choice among survivors."""
