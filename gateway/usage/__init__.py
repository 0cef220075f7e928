"""What every request used and cost: records, where they are kept, and reports over them."""
