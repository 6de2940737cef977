"""What owns rows and dense weights, and answers exchanges, in each mode."""
