return quota_settle(KEYS, ARGV, quota_now())
