-- The ids of its jobs that have not ended, at most so many. ARGV: prefix, id, '', most
return redis.call('SRANDMEMBER', key .. ':open', ARGV[4])
