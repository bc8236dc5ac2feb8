-- These are no longer in the object store. ARGV: prefix, '', paths...
local paths = {}
for i = 3, #ARGV do paths[#paths + 1] = ARGV[i] end
return redis.call('ZREM', P .. 'objects', unpack(paths))
