return quota_let_go(KEYS, ARGV, quota_now())
