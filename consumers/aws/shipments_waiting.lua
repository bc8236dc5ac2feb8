-- Those that wait, the oldest first. ARGV: prefix, most. Returns {now, record, joined, ...}
local found = redis.call('ZRANGE', P .. 'waiting', 0, tonumber(ARGV[2]) - 1, 'WITHSCORES')
table.insert(found, 1, whole(now_ms()))
return found
