-- For people. ARGV: prefix, most. Returns {how many wait, {id, field, value, ...}, ...}, the newest first
local page = {redis.call('ZCARD', P .. 'waiting')}
local ids = redis.call('ZRANGE', P .. 'open', 0, tonumber(ARGV[2]) - 1)
for _, id in ipairs(redis.call('ZRANGE', P .. 'over', 0, tonumber(ARGV[2]) - 1, 'REV')) do ids[#ids + 1] = id end
table.sort(ids, function(a, b) return a > b end)
for n = 1, math.min(#ids, tonumber(ARGV[2])) do
  local fields = redis.call('HGETALL', P .. 'job:' .. ids[n])
  table.insert(fields, 1, ids[n])
  page[#page + 1] = fields
end
return page
