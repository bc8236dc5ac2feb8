-- Lines to write: ids of jobs that have ended, and refused lines. ARGV: prefix, id, '', most
return redis.call('LRANGE', key .. ':ended', 0, tonumber(ARGV[4]) - 1)
