-- A file is about to be uploaded: forget expired ones, see that there is room, and have its bytes removed some time
-- later should it never be finished. ARGV: prefix, path, expected bytes, most bytes of the tenant, kept ms
-- Returns 1 | 0 (no room)
local now = now_ms()
for _, id in ipairs(redis.call('ZRANGEBYSCORE', P .. 'files:due', '-inf', whole(now), 'LIMIT', 0, 200)) do forget_file(id) end
if redis.call('ZCARD', P .. 'files') >= 100000 then return 0 end
if tonumber(redis.call('GET', P .. 'files:bytes') or 0) + tonumber(ARGV[3]) > tonumber(ARGV[4]) then return 0 end
redis.call('ZADD', P .. 'objects', whole(now + tonumber(ARGV[5])), ARGV[2])
return 1
