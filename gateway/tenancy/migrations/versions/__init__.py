"""The steps, oldest first by number. One that was released is never edited."""
