return quota_renew(KEYS, ARGV, quota_now())
