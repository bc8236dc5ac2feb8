-- A batch as it is now. With an owner: only while it is that one's, who is woken when something happens after this.
-- With a channel: it is woken at every further event. ARGV: prefix, id, owner ('' is anybody), channel ('' is none)
-- Returns {fields, now ms, open jobs, lines to write} | false
local h = redis.call('HMGET', key, 'about', 'watchers')
if not h[1] then return false end
if ARGV[3] ~= '' then
  if not is_mine() then return false end
  redis.call('HSET', key, 'asleep', '1')
end
if ARGV[4] ~= '' and not string.find(',' .. (h[2] or '') .. ',', ',' .. ARGV[4] .. ',', 1, true) and #(h[2] or '') < 2000 then
  redis.call('HSET', key, 'watchers', h[2] and h[2] .. ',' .. ARGV[4] or ARGV[4])
end
return {redis.call('HGETALL', key), whole(now_ms()), redis.call('SCARD', key .. ':open'), redis.call('LLEN', key .. ':ended')}
