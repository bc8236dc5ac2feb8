-- These are on the log. ARGV: prefix, '', fields...
local fields = {}
for i = 3, #ARGV do fields[#fields + 1] = ARGV[i] end
return redis.call('HDEL', P .. 'outbox', unpack(fields))
