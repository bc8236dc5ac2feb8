return quota_reserve(KEYS, ARGV, quota_now())
