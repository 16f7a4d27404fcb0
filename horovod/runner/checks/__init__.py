"""What `horovodrun --doctor` looks at: `host` examines one host, `pairs` what is between two; both run on the hosts, in
`probe`. `findings` judges what they tell (pure), `table` shows it (pure)."""
