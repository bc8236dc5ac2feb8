-- What a response was asked, or where that lies in the object store. ARGV: prefix, id, text, ttl ms, path ('' is none)
redis.call('SET', P .. 'input:' .. ARGV[2], ARGV[3], 'PX', ARGV[4])
if ARGV[5] ~= '' then redis.call('ZADD', P .. 'objects', whole(now_ms() + tonumber(ARGV[4])), ARGV[5]) end
return 1
