-- One file. ARGV: prefix, id. Returns {about, created, expires, bytes} | false
local h = redis.call('HMGET', P .. 'file:' .. ARGV[2], 'about', 'created', 'expires', 'bytes')
if not h[1] or tonumber(h[3]) <= now_ms() then return false end
return h
