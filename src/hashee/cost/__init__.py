"""What encoders cost: shapes, multiply-accumulates on plain arrays, the machine and its threads."""
