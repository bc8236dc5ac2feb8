-- An event that a URL is to be told. KEYS[1]: it; ARGV: prefix, name, most that wait, channel, wake-up, fields...
-- Returns 'owed' | 'known' | 'full'
if redis.call('EXISTS', KEYS[1]) == 1 then return 'known' end
if redis.call('ZCARD', P .. 'webhooks') >= tonumber(ARGV[3]) then return 'full' end
local now = whole(now_ms())
local fields = {'state', 'waiting', 'owed', now, 'attempts', '0'}
for i = 6, #ARGV do fields[#fields + 1] = ARGV[i] end
redis.call('HSET', KEYS[1], unpack(fields))
redis.call('PEXPIRE', KEYS[1], 30 * 86400000)
redis.call('ZADD', P .. 'webhooks', now, ARGV[2])
redis.call('PUBLISH', ARGV[4], ARGV[5])
return 'owed'
